"""The fault rig: training runs that are killed, starved and lied to on purpose, and what became of them.

    strikes.py  inside a run: the points where it can be struck, and what strikes it
    server.py   a process that has imported everything and forks a child for each run
    rig.py      starts the server, gives it runs, and judges what they leave behind
    kills.py damages.py troubles.py   the faults, one function each; a trial is one call
    table.py    every fault by name, and the table of trials, survived, lost

A fault is survived where the run goes on and ends as it should, or refuses with a named error that loses nothing. It is
lost where weights differ that must be equal, where epsilon is below what was drawn, or where an error has no name.
"""
