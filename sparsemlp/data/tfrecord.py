"""TFRecord files without TensorFlow, for data that TFDS prepared in its usual format."""

import os
import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<Q")
_CHECKSUM_BYTES = 4


def read_tfrecord(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yields the records of one file in order.

    A record is framed by its length (uint64, little endian), a checksum of the length, the data,
    and a checksum of the data. The checksums (masked CRC-32C) are skipped, not verified.

    Args:
      path: An uncompressed TFRecord file.

    Yields:
      The data of each record.

    Raises:
      EOFError: The file ends inside a record.
      OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        while length := file.read(_LENGTH.size):
            if len(length) < _LENGTH.size:
                raise EOFError(f"{path} ends inside the length of a record")
            (n_bytes,) = _LENGTH.unpack(length)
            if n_bytes > os.fstat(file.fileno()).st_size:
                raise EOFError(f"{path} is shorter than its record of {n_bytes} bytes")
            framed = file.read(_CHECKSUM_BYTES + n_bytes + _CHECKSUM_BYTES)
            if len(framed) < n_bytes + 2 * _CHECKSUM_BYTES:
                raise EOFError(f"{path} ends inside a record of {n_bytes} bytes")
            yield framed[_CHECKSUM_BYTES : _CHECKSUM_BYTES + n_bytes]
