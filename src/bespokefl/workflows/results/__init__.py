"""The result of a run, in memory and on disk.

result           `Result`, and `load_run`, which reads it from a directory
summary          the content of result.json except scores
score_tables     tables of clients' scores, as JSON and CSV
frames           scores as pandas data frames
models           personal and global models
server_artifact  the server's state, from which newcomers' models are made
run_directory    locking and atomic writing of directories
"""
