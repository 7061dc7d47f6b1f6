"""Files of this package: the packed store, arrays under checksums, atomic writes, locks."""
