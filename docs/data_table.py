"""Prints the tables of docs/data.md, from the registry. Run: .venv/bin/python docs/data_table.py"""

from clipwise.data import DATASETS


def tables() -> str:
    lines = [
        "| name | kind | train | test | record | classes | licence |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for source in DATASETS.values():
        for number, edition in enumerate(source.editions):
            if number and (edition.train_count, edition.test_count) == (
                source.editions[0].train_count,
                source.editions[0].test_count,
            ):
                continue  # the same records in another coding
            name = f"`{source.name}`" if not number else f"`{source.name}`, as in the project's data folder"
            shape = "x".join(map(str, source.shape))
            lines.append(
                f"| {name} | {source.kind} | {edition.train_count:,} | {edition.test_count:,} | {shape} | {source.classes} "
                f"| {source.licence} |"
            )
    lines += ["", "| file | bytes | sha256 | from |", "| --- | --- | --- | --- |"]
    files = {
        path: file
        for source in DATASETS.values()
        if (edition := source.fetchable)
        for path, file in edition.files.items()
    }
    lines += [
        f"| `{path}` | {file.size:,} | `{file.sha256}` | {' '.join(f'<{url}>' for url in file.urls)} |"
        for path, file in files.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(tables(), end="")
