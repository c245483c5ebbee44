"""Reports: runs, searches and studies as pages and pictures."""
