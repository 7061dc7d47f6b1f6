"""Files of this package: the packed store, arrays with checksums, atomic writes, locks."""
