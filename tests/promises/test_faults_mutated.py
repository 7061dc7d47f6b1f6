"""Stores and model files that were changed anywhere: the same numbers, or an error that says so."""

import h5py
import numpy as np
import pytest
from small_fits import X, model

import nmfscale
from nmfscale.readers.open import as_counts
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_writer import pack

pytestmark = pytest.mark.usefixtures("small_blocks")


def write_store(path):
    counts = as_counts(X)
    parts = counts.indptr, counts.indices, counts.data
    names = [f"sample {i}" for i in range(len(X))]
    pack(nmfscale.results.Counts(*parts, counts.shape, sample_names=names, notes=["a note"]), path)


def write_model(path):
    init = np.arange(len(X)) % 4
    model(4, max_iter=3, init=init, prior_factors=np.full(4, 1.5)).fit(X).save(path)


def contents_of_store(path):
    counts = StoredCounts(path)
    counts.verify()
    layout = counts.layout()
    known = [counts.shape, counts.nnz, counts.dtype, counts.largest, counts.notes, counts.source]
    known += [counts.report(), counts.sample_names, counts.feature_names, counts.groups]
    known += [counts.row_totals, counts.column_totals, layout.count_values(), layout.large]
    matrix = counts.in_memory()
    return in_bits([*known, matrix.data, matrix.indices, matrix.indptr])


def contents_of_model(path):
    return in_bits(sorted(vars(nmfscale.load(path)).items()))


def in_bits(value):
    """Return what can be compared, of which no part is equal to another kind or shape."""
    if isinstance(value, list | tuple):
        return [in_bits(each) for each in value]
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype == object else value.tobytes()
        return str(value.dtype), value.shape, content
    return repr(value)


def nodes_of(file):
    found = []
    file.visititems(lambda name, _: found.append(name))
    return found


def datasets_of(file):
    return [name for name in nodes_of(file) if isinstance(file[name], h5py.Dataset)]


def remade(file, name, values):
    """Put other values in a dataset's place, with the attributes that it had."""
    attributes = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, data=values).attrs.update(attributes)


def delete(file, chance):
    del file[chance.choice(nodes_of(file))]


def rename(file, chance):
    name = chance.choice(nodes_of(file))
    file.move(name, name + chance.choice(["é", "_", "0"]))


def swap(file, chance):
    one, other = chance.choice(datasets_of(file), 2)
    if one != other:
        file.move(one, "aside")
        file.move(other, one)
        file.move("aside", other)


def reshape(file, chance):
    name = chance.choice(datasets_of(file))
    values = file[name][()]
    size = np.size(values)
    shapes = [(1, size), (size, 1), (1, 1, size)] + [()] * (size == 1)
    remade(file, name, np.reshape(values, shapes[chance.integers(len(shapes))]))


def resize(file, chance):
    name = chance.choice(datasets_of(file))
    values = np.atleast_1d(file[name][()])
    remade(file, name, values[: len(values) // 2] if chance.integers(2) else values.repeat(2, 0))


def change_bytes_type(file, chance):
    """Call the same bytes another type: no checksum of values sees that."""
    name = chance.choice(datasets_of(file))
    values = np.atleast_1d(file[name][()])
    if values.dtype.names is None:
        kinds = [k for k in ("uif") if values.itemsize in (2, 4, 8) or k != "f"]
        new = f"{chance.choice(['<', '>'])}{chance.choice(kinds)}{values.itemsize}"
        values = values.view(new) if file[name].shape else values.view(new)[0]
        remade(file, name, values)


def change_type(file, chance):
    name = chance.choice(datasets_of(file))
    values = file[name][()]
    if values.dtype.names is None:
        remade(file, name, values.astype(chance.choice(["f4", "f8", "i4", "u8", "S8"])))


def change_attribute(file, chance):
    node = file[chance.choice(["/", *nodes_of(file)])]
    if not node.attrs:
        return
    name = chance.choice(list(node.attrs))
    others = [
        np.array([1, 2]), np.array([b"a", b"b"]), np.bytes_("some text"), "some text", -1, 2**40,
        0.5, np.float64(np.nan), h5py.Empty("f8"), np.zeros((0, 2)),
    ]  # fmt: skip
    del node.attrs[name]
    at = chance.integers(len(others) + 1)
    if at < len(others):
        node.attrs[name] = others[at]


def cut(path, chance):
    content = path.read_bytes()
    path.write_bytes(content[: chance.integers(len(content))])


def flip(path, chance):
    content = bytearray(path.read_bytes())
    content[chance.integers(len(content))] ^= 1 << chance.integers(8)
    path.write_bytes(content)


INSIDE = [
    delete, rename, swap, reshape, resize, change_bytes_type, change_type, change_attribute,
]  # fmt: skip


@pytest.mark.parametrize("n_mutations", [20, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("write", "contents"),
    [(write_store, contents_of_store), (write_model, contents_of_model)],
    ids=["store", "model"],
)
def test_a_file_that_was_changed_anywhere(tmp_path, write, contents, n_mutations):
    path, chance, n_refused = tmp_path / "changed.h5", np.random.default_rng(n_mutations), 0
    write(path)
    whole, expected = path.read_bytes(), contents(path)
    for number in range(n_mutations):
        path.write_bytes(whole)
        change = [*INSIDE, cut, flip][number % (len(INSIDE) + 2)]
        if change in INSIDE:
            with h5py.File(path, "r+") as file:
                change(file, chance)
        else:
            change(path, chance)
        try:
            found = contents(path)
        except (ValueError, OSError) as error:
            n_refused += 1
            assert path.name in str(error), (number, change.__name__)
        else:
            assert found == expected, (number, change.__name__)
    assert n_refused > 0.6 * n_mutations
