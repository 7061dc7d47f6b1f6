"""Tasks on a Dask cluster, tried again and elsewhere until they are done."""
