"""Files and memory of the machine.

files   atomic files and locks
memory  the available memory
"""
