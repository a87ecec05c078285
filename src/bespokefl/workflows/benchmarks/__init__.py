"""Speed, scale and deployment overhead, measured by `bespoke bench`."""
