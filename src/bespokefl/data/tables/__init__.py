"""Tables as data: CSV, Parquet and .npz files, dicts of columns and pandas tables.

table               `load`, `from_columns` and `inputs`: tables as data sets
table_files         reads columns from files, also with decimal commas such as 3,14
client_directories  a directory of tables for each client
features            how columns become features, and the class `Table`
reading             how cells are read: missing values, numbers
dates               dates as features
text                documents as word ids
"""

from bespokefl.data.tables.table import from_columns, inputs, load

__all__ = ["from_columns", "inputs", "load"]
