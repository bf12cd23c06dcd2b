"""Vectorized base64 decoding of a column's cells."""

import numpy as np
import pyarrow as pa

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAD = 64
_INVALID = 255
_CODES = np.full(256, _INVALID, np.uint8)
_CODES[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64, dtype=np.uint8)
_CODES[ord("=")] = _PAD


def decode_base64(text: pa.Array) -> pa.Array:
    """The decoded bytes of each cell. A cell that is not valid base64 keeps its own UTF-8 bytes (F11)."""
    text = pa.concat_arrays([text])
    offsets, codes, raw = _buffers(text)
    lengths = np.diff(offsets)
    valid = (lengths % 4 == 0) & _well_formed(codes, offsets)
    packed = text.cast(pa.binary())
    if not valid.any():
        return packed
    decoded = _decode(codes, raw, offsets, valid)
    if packed.null_count:
        decoded = pa.compute.if_else(packed.is_valid(), decoded, None)
    return decoded


def invalid_base64(text: pa.Array) -> int:
    """The number of cells that are not valid base64."""
    text = pa.concat_arrays([text])
    offsets, codes, _ = _buffers(text)
    valid = (np.diff(offsets) % 4 == 0) & _well_formed(codes, offsets)
    return int(np.count_nonzero(~valid))


def _buffers(text: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The offsets of the cells, the base64 code of each character, and the characters."""
    filled = text.fill_null("")
    offsets = np.frombuffer(filled.buffers()[1], np.int32)[
        filled.offset : filled.offset + len(filled) + 1
    ].astype(np.int64)
    data = filled.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    raw = raw[offsets[0] : offsets[-1]] if len(offsets) else raw
    return offsets - offsets[0], _CODES[raw], raw


def _well_formed(codes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Whether each cell has only characters of the alphabet, then at most two padding characters."""
    ends = offsets[1:]
    filled = ends > offsets[:-1]
    last = np.where(filled, ends - 1, 0)
    before = np.where(ends - offsets[:-1] > 1, ends - 2, 0)
    padded = np.append(codes, np.uint8(0))
    pads = filled & (padded[last] == _PAD)
    two = pads & (padded[before] == _PAD)
    strange = np.concatenate([[0], np.cumsum(codes >= _PAD)])
    count = strange[ends] - strange[offsets[:-1]]
    return count == pads.astype(np.int64) + two


def _decode(codes: np.ndarray, raw: np.ndarray, offsets: np.ndarray, valid: np.ndarray) -> pa.Array:
    lengths = np.diff(offsets)
    chosen = np.repeat(valid, lengths)
    groups = np.where(codes[chosen] == _PAD, 0, codes[chosen]).reshape(-1, 4).astype(np.uint32)
    word = groups[:, 0] << 18 | groups[:, 1] << 12 | groups[:, 2] << 6 | groups[:, 3]
    triples = np.stack([word >> 16 & 255, word >> 8 & 255, word & 255], axis=1).astype(np.uint8)
    keep = np.ones((len(groups), 3), bool)
    pads = codes[chosen].reshape(-1, 4) == _PAD
    keep[:, 2] = ~pads[:, 3]
    keep[:, 1] = ~pads[:, 2]
    size = np.where(valid, lengths // 4 * 3, lengths)
    ends = offsets[1:]
    padded = np.append(codes, np.uint8(0))
    size -= (valid & (lengths > 0) & (padded[np.maximum(ends - 1, 0)] == _PAD)).astype(np.int64)
    size -= (valid & (lengths > 0) & (padded[np.maximum(ends - 2, 0)] == _PAD)).astype(np.int64)
    out = np.empty(int(size.sum()), np.uint8)
    from_valid = np.repeat(valid, size)
    out[from_valid] = triples[keep]
    out[~from_valid] = raw[~chosen]
    new_offsets = np.concatenate([[0], np.cumsum(size)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(size), [None, pa.py_buffer(new_offsets), pa.py_buffer(out)])
