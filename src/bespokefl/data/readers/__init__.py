"""Readers of file formats; each module reads one format.

archive      tar and zip archives
cifar        CIFAR-10 and CIFAR-100
idx          IDX files, the format of MNIST
leaf         LEAF's JSON files
npz          numpy's .npz files
png          PNG images
safe_pickle  pickles of plain arrays, without executing them
files        shared functions: find files, limit their size, report damage

`read(path)` reads one file. `read_directory(directory, report)` reads a whole data set: official training and test
examples together, as arrays `x`, `y`, `test` (True for test examples) and perhaps more, such as `client`; None if the
directory has no such files. No content of a file is executed, and no reader takes more than `files.LIMIT` bytes.
"""
