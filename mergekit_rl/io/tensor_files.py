"""The safetensors files of a planned folder, known byte by byte before they exist."""

import os
from collections.abc import Mapping
from pathlib import Path

from mergekit_rl.errors import EditError
from mergekit_rl.io.disk import reserve, sync_folders, write_all
from mergekit_rl.io.header import build_header, read_header, tensor_bytes

Layout = Mapping[str, Mapping[str, tuple[str, tuple[int, ...]]]]
"""{file: {tensor name: (dtype, shape)}}; files are paths within the output folder."""


class TensorFiles:
    """Attributes:
    layout: every file and tensor.
    headers: {file: its leading bytes}.
    sizes: {file: its bytes}.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.headers: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self._offsets: dict[str, dict[str, int]] = {}
        for file, tensors in layout.items():
            header, offsets = build_header(tensors)
            self.headers[file] = header
            self.sizes[file] = len(header) + sum(tensor_bytes(*it) for it in tensors.values())
            self._offsets[file] = dict(zip(tensors, offsets, strict=True))

    def offset(self, file: str, name: str, data: memoryview, at: int) -> int:
        """Where in `file` the bytes `data`, `at` bytes into the tensor `name`, go.

        Raises:
            ValueError: they reach out of the tensor.
        """
        dtype, shape = self.layout[file][name]
        if data.nbytes != len(data):
            raise ValueError(f"{name}: expected single bytes, got items of {data.itemsize}")
        if at < 0 or at + len(data) > tensor_bytes(dtype, shape):
            raise ValueError(f"{len(data)} bytes at {at} do not fit {name} {dtype} {shape}")
        return self._offsets[file][name] + at

    def create(self, folder: Path) -> None:
        """Makes the files in `folder`, with their headers, at their full size; synced."""
        for file, header in self.headers.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                reserve(fd, self.sizes[file])
                write_all(fd, memoryview(header), 0)
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_folders(folder)

    def laid_out(self, folder: Path) -> bool:
        """Whether `folder` holds the files, each of its size and with its header."""
        for file, header in self.headers.items():
            path = folder / file
            if not path.is_file() or path.stat().st_size != self.sizes[file]:
                return False
            with path.open("rb") as opened:
                if opened.read(len(header)) != header:
                    return False
        return True

    def verify(self, folder: Path) -> None:
        """Raises EditError where a file's header, read anew here and by the `safetensors` package,
        does not describe what was planned."""
        from safetensors import SafetensorError, safe_open

        for file, tensors in self.layout.items():
            path = folder / file
            try:
                found = {name: (i.dtype, i.shape) for name, i in read_header(path)[0].items()}
                with safe_open(path, framework="numpy") as reader:
                    names = set(reader.keys())
            except (EditError, SafetensorError) as error:
                raise EditError(
                    f"{path} was damaged while it was made ({error}); start over with --force"
                ) from error
            if found != dict(tensors) or names != set(tensors):
                raise EditError(
                    f"{path} was damaged while it was made (other tensors); start over with --force"
                )
