"""File formats: each module reads one, and says in a sentence when a file is not what its name says.

`read(path)` takes one file. `pool(folder, report)` takes a whole set: the official training and test examples together,
as arrays `x`, `y`, `test` (which are for test), and perhaps more, such as `client`; None where the folder has no such
files. Nothing that a file contains is ever executed, and no file makes a reader take more than `files.LIMIT` bytes.
"""
