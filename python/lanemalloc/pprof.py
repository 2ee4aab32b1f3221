"""Profiles in pprof's format: read from what the library writes, written with names and lines.

The format is https://github.com/google/pprof/blob/main/proto/profile.proto; the messages are made
here from its documented field numbers, for the protobuf library that is installed, whichever
version it is. Texts are taken as bytes: the library writes names of files as the system has them,
and these need not be UTF-8.

Used by: the commands profile and run.
"""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from lanemalloc import outputs
from lanemalloc.profiles import UNKNOWN_STACK, Frame, Mapping, Profile, ValueType, merge
from lanemalloc.ui import Problem, shown

# Message: fields as name, number, type; `*` before the type: repeated.
FIELDS = {
    "Profile": (
        "sample_type 1 *ValueType", "sample 2 *Sample", "mapping 3 *Mapping",
        "location 4 *Location", "function 5 *Function", "string_table 6 *bytes",
        "drop_frames 7 int64", "keep_frames 8 int64", "time_nanos 9 int64",
        "duration_nanos 10 int64", "period_type 11 ValueType", "period 12 int64",
        "comment 13 *int64", "default_sample_type 14 int64",
    ),
    "ValueType": ("type 1 int64", "unit 2 int64"),
    "Sample": ("location_id 1 *uint64", "value 2 *int64", "label 3 *Label"),
    "Label": ("key 1 int64", "str 2 int64", "num 3 int64", "num_unit 4 int64"),
    "Mapping": (
        "id 1 uint64", "memory_start 2 uint64", "memory_limit 3 uint64", "file_offset 4 uint64",
        "filename 5 int64", "build_id 6 int64", "has_functions 7 bool", "has_filenames 8 bool",
        "has_line_numbers 9 bool", "has_inline_frames 10 bool",
    ),
    "Location": (
        "id 1 uint64", "mapping_id 2 uint64", "address 3 uint64", "line 4 *Line",
        "is_folded 5 bool",
    ),
    "Line": ("function_id 1 uint64", "line 2 int64"),
    "Function": (
        "id 1 uint64", "name 2 int64", "system_name 3 int64", "filename 4 int64",
        "start_line 5 int64",
    ),
}  # fmt: skip
PACKAGE = "perftools.profiles"
SIZE = "bytes"  # the label with the size of the objects, as other allocators call it
TYPES = {"int64": 3, "uint64": 4, "bool": 8, "message": 11, "bytes": 12}


def make_message() -> Any:
    """The class of the message Profile."""
    file = descriptor_pb2.FileDescriptorProto(
        name="lanemalloc/profile.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field in fields:
            field_name, number, kind = field.split()
            one = message.field.add(
                name=field_name, number=int(number), label=3 if kind[0] == "*" else 1
            )
            kind = kind.lstrip("*")
            one.type = TYPES.get(kind, TYPES["message"])
            if kind not in TYPES:
                one.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    profile = pool.FindMessageTypeByName(f"{PACKAGE}.Profile")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(profile)
    return message_factory.MessageFactory(pool).GetPrototype(profile)  # before 4.22: Debian 12


Message = make_message()


def read(file: Path) -> Profile:
    """Of a file that the library has written, or this module. Raises Problem."""
    try:
        data = file.read_bytes()
        raw = Message.FromString(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        return from_message(raw)
    except OSError as error:
        raise Problem(f"{file} cannot be read: {error.strerror}") from None
    except (DecodeError, EOFError, IndexError, KeyError, re.error):
        raise Problem(
            f"{file} is not whole", "the process may have been killed while it wrote; run it again"
        ) from None


def from_message(raw: Any) -> Profile:
    """With the names that it has. What the library writes has none."""
    text = [os.fsdecode(one) for one in raw.string_table]
    functions = {
        one.id: (text[one.name], text[one.system_name], text[one.filename]) for one in raw.function
    }
    mappings = [
        Mapping(m.memory_start, m.memory_limit, m.file_offset, text[m.filename], text[m.build_id])
        for m in raw.mapping
    ]  # the library writes them before the places, with ids from 1
    places = {one.id: one.address for one in raw.location}
    frames = {
        one.address: tuple(
            Frame(name, "" if linked == name else linked, file, line.line)
            for line in one.line
            for name, linked, file in [functions[line.function_id]]
        )
        for one in raw.location
        if one.address and one.line
    }
    sized = []
    types = [ValueType(text[one.type], text[one.unit]) for one in raw.sample_type]
    for sample in raw.sample:
        if len(sample.value) != len(types):
            raise IndexError
        addresses = tuple(places[number] for number in sample.location_id)
        size = next((one.num for one in sample.label if text[one.key] == SIZE), 0)
        sized.append(((tuple(a for a in addresses if a), size), list(sample.value)))
    stacks = merge((addresses, values) for (addresses, _), values in sized)
    return Profile(
        types=types,
        default=text[raw.default_sample_type],
        period_type=ValueType(text[raw.period_type.type], text[raw.period_type.unit]),
        period=raw.period,
        time_ns=raw.time_nanos,
        duration_ns=raw.duration_nanos,
        drop=text[raw.drop_frames],
        mappings=mappings,
        stacks=stacks,
        sized=sized if any(size for (_, size), _ in sized) else [],
        frames=frames,
    )


class Writer:
    """Puts a profile into a message: strings, functions and places once each."""

    def __init__(self) -> None:
        self.message = Message()
        self._strings: dict[str, int] = {}
        self._functions: dict[tuple[str, str, str], int] = {}
        self._places: dict[int, int] = {}
        self.string("")

    def string(self, text: str) -> int:
        found = self._strings.get(text)
        if found is None:
            found = self._strings[text] = len(self._strings)
            self.message.string_table.append(shown(text).encode())
        return found

    def function(self, frame: Frame) -> int:
        key = (frame.name, frame.linkage_name, frame.file)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = len(self._functions) + 1
            self.message.function.add(
                id=found,
                name=self.string(frame.name),
                system_name=self.string(frame.linkage_name or frame.name),
                filename=self.string(frame.file),
            )
        return found

    def place(self, address: int, frames: tuple[Frame, ...], mapping: int) -> int:
        """Address 0: of a stack that is not known."""
        found = self._places.get(address)
        if found is None:
            found = self._places[address] = len(self._places) + 1
            location = self.message.location.add(id=found, mapping_id=mapping, address=address)
            for frame in frames:
                location.line.add(function_id=self.function(frame), line=frame.line)
        return found

    def value_type(self, into: Any, kind: ValueType) -> None:
        into.type, into.unit = self.string(kind.type), self.string(kind.unit)


def to_message(profile: Profile) -> Any:
    """With what is known of names."""
    writer = Writer()
    out = writer.message
    for kind in profile.types:
        writer.value_type(out.sample_type.add(), kind)
    writer.value_type(out.period_type, profile.period_type)
    out.period, out.time_nanos, out.duration_nanos = (
        profile.period,
        profile.time_ns,
        profile.duration_ns,
    )
    out.default_sample_type, out.drop_frames = (
        writer.string(profile.default),
        writer.string(profile.drop),
    )
    ids = {}
    for number, mapping in enumerate(profile.mappings, 1):
        ids[mapping] = number
        known = (
            [profile.frames[a] for a in profile.frames if mapping.begin <= a < mapping.end]
            if profile.frames
            else []
        )
        frames = [frame for some in known for frame in some]
        out.mapping.add(
            id=number,
            memory_start=mapping.begin,
            memory_limit=mapping.end,
            file_offset=mapping.offset,
            filename=writer.string(mapping.path),
            build_id=writer.string(mapping.build_id),
            has_functions=bool(frames),
            has_filenames=any(frame.file for frame in frames),
            has_line_numbers=any(frame.line for frame in frames),
            has_inline_frames=any(len(some) > 1 for some in known),
        )
    unknown = (Frame(UNKNOWN_STACK),)
    bare = [((addresses, 0), values) for addresses, values in profile.stacks]
    for (addresses, size), values in profile.sized or bare:
        sample = out.sample.add(value=values)
        if size:
            sample.label.add(key=writer.string(SIZE), num=size, num_unit=writer.string("bytes"))
        for address in addresses:
            within = profile.mapping_of(address)
            sample.location_id.append(
                writer.place(address, profile.frames.get(address, ()), ids[within] if within else 0)
            )
        if not addresses:
            sample.location_id.append(writer.place(0, unknown, 0))
    return out


def write(profile: Profile, file: Path) -> int:
    """Compressed, whole or not at all. Returns the bytes; raises OSError."""
    data = gzip.compress(to_message(profile).SerializeToString(), mtime=0)
    outputs.write(file, lambda path: path.write_bytes(data))
    return len(data)
