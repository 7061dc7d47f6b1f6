"""Writers of count tables in every supported format, by the specifications of the formats."""

import gzip

import h5py
import numpy as np
import scipy.sparse as sp


def write_sparse(group, matrix, data=None, indices=None, indptr=None, settings=None, **attributes):
    """Write `data`, `indices` and `indptr`, optionally with other dtypes."""
    for name, dtype in (("data", data), ("indices", indices), ("indptr", indptr)):
        values = np.asarray(getattr(matrix, name))
        group.create_dataset(name, data=values.astype(dtype or values.dtype), **(settings or {}))
    group.attrs.update(attributes)


def write_with_unknown_filter(group, name, shape):
    """Write a dataset that declares a compression filter that does not exist."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk(shape)
    settings.set_filter(32999, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple(shape)
    data = h5py.h5d.create(group.id, name.encode(), h5py.h5t.NATIVE_INT32, space, settings)
    data.write_direct_chunk((0,) * len(shape), b"compressed", filter_mask=0)


def write_h5ad(path, matrix, at="X", **options):
    """Write a file in the layout of AnnData since 0.8; `matrix` is csr, csc or dense."""
    with h5py.File(path, "w") as file:
        for name, size in (("obs", matrix.shape[0]), ("var", matrix.shape[1])):
            file[f"{name}/_index"] = [f"{name}-{number}" for number in range(size)]
            file[name].attrs["_index"] = "_index"
        if at == "raw/X":
            file.copy(file["var"], file.create_group("raw"), "var")
        if not sp.issparse(matrix):
            file.create_dataset(at, data=matrix, **(options.get("settings") or {}))
            return path
        encoding = {"encoding-type": f"{matrix.format}_matrix", "shape": np.array(matrix.shape)}
        write_sparse(file.create_group(at), matrix, **options, **encoding)
    return path


def write_old_h5ad(path, matrix):
    """Write a file in the layout of AnnData 0.6: compound tables, other attribute names."""
    with h5py.File(path, "w") as file:
        kind = {"h5sparse_format": matrix.format, "h5sparse_shape": np.array(matrix.shape)}
        write_sparse(file.create_group("X"), matrix, **kind)
        for name, size in (("obs", matrix.shape[0]), ("var", matrix.shape[1])):
            names = [(f"{name}-{number}".encode(),) for number in range(size)]
            file[name] = np.array(names, dtype=[("index", "S12")])
    return path


def write_tenx_group(group, matrix, cells, columns, **options):
    """Write a group of Cell Ranger: cells x genes by rows, with the shape of the transpose."""
    write_sparse(group, matrix, **options)
    group["shape"] = np.array(matrix.shape[::-1], dtype=np.int32)
    group["barcodes"] = np.array(cells, "S18")
    for name, values in columns.items():
        group[name] = np.array(values, "S20")


def write_tenx(path, matrix, version, **options):
    """Write a file of Cell Ranger 2 or 3 with two types of features and two genomes."""
    cells, genes = ([f"{n}-{at}" for at in range(matrix.shape[n == "var"])] for n in ("obs", "var"))
    numbers = np.arange(len(genes))
    columns = {"genes": genes, "gene_names": genes}
    if version == 3:
        kinds = np.where(numbers % 3 == 1, "Antibody Capture", "Gene Expression")
        columns = {"features/id": genes, "features/name": genes, "features/feature_type": kinds}
        columns["features/genome"] = np.where(numbers % 2, "hg", "mm")
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix" if version == 3 else "hg19")
        write_tenx_group(group, matrix, cells, columns, **options)
    return path


def write_text(path, text):
    """Write a text file, compressed if its name ends with .gz."""
    data = text.encode()
    path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
    return path


def entry_lines(rows, columns, values=None):
    """Return lines of 1-based positions, with values if they are given."""
    fields = [np.asarray(rows) + 1, np.asarray(columns) + 1]
    lines = zip(*(f.tolist() for f in fields), *([] if values is None else [values]), strict=True)
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def write_mtx(path, matrix, field="integer", order=slice(None), comment="%a comment\n"):
    """Write a Matrix Market file of coordinates, with the entries in this order."""
    entries = matrix.tocoo()
    rows, columns, values = (
        part[order] for part in (entries.row, entries.col, entries.data.astype(object))
    )
    head = f"%%MatrixMarket matrix coordinate {field} general\n{comment}"
    sizes = f"{matrix.shape[0]} {matrix.shape[1]} {rows.size}\n"
    return write_text(
        path, head + sizes + entry_lines(rows, columns, None if field == "pattern" else values)
    )


def write_docword(path, matrix, order=slice(None)):
    """Write a UCI bag of words, with the entries in this order."""
    entries = matrix.tocoo()
    rows, columns, values = (part[order] for part in (entries.row, entries.col, entries.data))
    head = f"{matrix.shape[0]}\n{matrix.shape[1]}\n{rows.size}\n"
    return write_text(path, head + entry_lines(rows, columns, values.tolist()))
