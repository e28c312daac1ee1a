"""Replies whose bytes pass the SuperLink's checks, and of which Flower can make no message."""

from __future__ import annotations

import json

from flwr.app import ConfigRecord, Message
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_id
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    validate_object_content,
)

FORGERIES = ("no content", "a record as content", "no names of records", "no values of a record")


def _object(kind: str, body: bytes, *children: str) -> bytes:
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def forged(reply: Message, forgery: str) -> Message:
    """Make a message from the objects that a lying node sends in place of `reply`.

    Flower's grid does this while it pulls a reply. Raises the error that Flower raises.
    """
    if forgery == "no content":
        objects = []
    elif forgery == "a record as content":
        objects = [ConfigRecord({"encoded": b"report"}).deflate()]
    elif forgery == "no names of records":
        objects = [_object("RecordDict", b"[[[")]
    else:
        wrong = _object("ConfigRecord", b"\xff\xff\xff")
        named = json.dumps({"fedveil": get_object_id(wrong)}).encode()
        objects = [_object("RecordDict", named, get_object_id(wrong)), wrong]
    body = get_object_body(reply.deflate(), Message)
    objects.insert(0, _object("Message", body, *map(get_object_id, objects[:1])))
    for content in objects:
        validate_object_content(content)
    contents = {get_object_id(content): content for content in objects}
    made = inflate_object_from_contents(get_object_id(objects[0]), contents)
    assert isinstance(made, Message)
    return made
