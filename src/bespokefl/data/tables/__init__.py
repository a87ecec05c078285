"""User tables (CSV, TSV, Parquet, NPZ): columns, features and text."""
