"""Records of parquet files, read batch by batch; pyarrow is imported when a file is opened."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regraft.data.text.columns import Columns, Values, check_width, unique_names
from regraft.data.text.lines import read_whole, refuse_bomb, too_long
from regraft.errors import DataError
from regraft.runtime import optional, read_limits

# Records of a parquet file that are in memory at once.
_BATCH_ROWS = 4096


def read_parquet_records(
    path: Path, *, columns: Columns, whole: bool
) -> Iterator[tuple[Values, dict[str, Any] | None]]:
    """Each record as Python values, read batch by batch, with its cells if the table is whole."""
    with opened_parquet(path, keeps_dictionaries=True) as file:
        names = file.schema_arrow.names
        check_width(len(names), place=str(path))
        columns.check(names, place=str(path))
        wanted = columns.present(names)
        wanted_names = dict.fromkeys(name for name in wanted if name is not None)
        read = names if whole else list(wanted_names)
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=read):
            # By place: names may occur twice.
            parts = [_values(array, path=path) for array in batch.columns]
            places = [None if name is None else batch.schema.names.index(name) for name in wanted]
            all_names = unique_names(batch.schema.names)
            for record in zip(*parts, strict=True):
                values = Values(*(None if place is None else record[place] for place in places))
                yield values, dict(zip(all_names, record, strict=True)) if whole else None


def _values(array: Any, *, path: Path) -> list[Any]:
    """A column of a batch as Python values; rows with one entry of a dictionary share it."""
    entries = getattr(array, "dictionary", array)
    if entries is array:
        found: list[Any] = array.to_pylist()
    else:
        codes = array.indices.to_pylist()
        by_code = {code: entries[code].as_py() for code in set(codes) - {None}}
        found = [by_code.get(code) for code in codes]
    most = read_limits().record_bytes
    if any(isinstance(value, str | bytes) and len(value) > most for value in found):
        raise too_long(f"A cell of {path}", most, limit="record_bytes")
    return found


def opened_parquet(path: Path, *, keeps_dictionaries: bool = False) -> Any:
    """A `pyarrow.parquet.ParquetFile`; pyarrow is an optional dependency without types.

    In its dictionary, a long text that occurs in many rows is held once.
    """
    with optional(f"Reading {path}", extra="parquet"):
        import pyarrow
        import pyarrow.parquet
    try:
        source = pyarrow.BufferReader(read_whole(path)) if path.suffix == ".gz" else path
        file = pyarrow.parquet.ParquetFile(source)
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        refuse_bomb(path, num_bytes=sum(group.total_byte_size for group in groups))
        if not keeps_dictionaries:
            return file
        is_text = pyarrow.types.is_string
        texts = [field.name for field in file.schema_arrow if is_text(field.type)]
        file.close()
        return pyarrow.parquet.ParquetFile(source, read_dictionary=texts)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} is not a parquet file: {str(error).splitlines()[0]}",
            remedy="Write it again, or convert it to csv.",
        ) from error
