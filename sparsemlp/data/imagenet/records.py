"""A split of a TFDS data set in array_record files as a source of encoded images."""

import re
from pathlib import Path
from typing import Any

from sparsemlp.errors import InputError, in_a_line


class RecordSource:
    """The images of a split, with random access and without TensorFlow.

    Args:
      directory: The folder of one version of a prepared data set.
      split: Name of the split.
    """

    def __init__(self, directory: Path, split: str) -> None:
        import tensorflow_datasets as tfds

        builder: Any = tfds.builder_from_directory(directory)
        self._directory = directory
        self._split = split
        self._records = builder.as_data_source(
            split, decoders={"image": tfds.decode.SkipDecoding()}
        )

    def __reduce__(self) -> tuple[type["RecordSource"], tuple[Path, str]]:
        """A worker process opens the files anew."""
        return RecordSource, (self._directory, self._split)

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> tuple[bytes, int]:
        """An encoded image and its label.

        Raises:
          Exception: The record is damaged; the class is one of array_record or TFDS.
        """
        record = self._records[index]
        return record["image"], int(record["label"])

    def name(self, index: int) -> str:
        """Where a record is, and the name of its file where the data set has one."""
        place = f"{self._directory}, {self._split} record {index}"
        try:
            return f"{place} ({self._records[index]['file_name'].decode()})"
        except Exception:  # No such feature, or the record is damaged itself.
            return place


def prepared_builder(name: str, data_dir: Path) -> Any:
    """The TFDS builder of a prepared data set of labelled images.

    Args:
      name: As for `tfds.builder`: `imagenet2012`, `imagenet2012:5.1.0`, `name/config`.
      data_dir: The TFDS `data_dir`.

    Returns:
      The builder, whose features `image` and `label` are an image and a class.

    Raises:
      InputError: The data set is not there, not in array_record files, damaged, or holds
        something else.
    """
    if not re.fullmatch(r"[A-Za-z]\w*(/[\w.+-]+)?(:\d+\.\d+\.\d+)?", name):
        raise InputError(
            f"{name!r} is no folder, no .npz file and no name of a TFDS data set: give "
            "imagenet2012, or a folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG"
        )
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import read_only_builder

    try:
        builder: Any = read_only_builder.builder_from_files(name, data_dir=data_dir)
        features = dict(builder.info.features)
        file_format = builder.info.file_format
    except tfds.core.DatasetNotFoundError as error:
        raise InputError(
            f"{name} is not prepared in {data_dir}: pass a TFDS folder that holds it in "
            "array_record files, or a folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG"
        ) from error
    # TFDS and protobuf report damage in classes of their own.
    except Exception as error:
        reason = in_a_line(error)
        raise InputError(
            f"{name} in {data_dir} cannot be read ({reason}): prepare it anew"
        ) from error
    if file_format is not tfds.core.FileFormat.ARRAY_RECORD:
        raise InputError(
            f"{builder.data_dir} holds {file_format.value} files, which have no random access: run "
            f"tfds convert_format --dataset_version_dir={builder.data_dir} "
            "--out_file_format=array_record --out_dir=FOLDER"
        )
    for key, kind in (("image", tfds.features.Image), ("label", tfds.features.ClassLabel)):
        if not isinstance(features.get(key), kind):
            raise InputError(
                f"{name} has no feature {key!r} of the kind {kind.__name__} but "
                f"{', '.join(sorted(features))}: choose a data set of labelled images"
            )
    return builder
