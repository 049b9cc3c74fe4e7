"""Protocol buffer messages described by hand, so that no generated code is needed."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["message_classes"]


def message_classes(
    package: str, messages: Mapping[str, Sequence[str]], enums: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, type[Any]]:
    """Classes of messages, in a descriptor pool of their own.

    Fields that are not described are kept: writing a parsed message again loses nothing.
    Protobuf is loaded on the first call.

    Args:
      package: The package of the schema.
      messages: Message -> its fields as ``"name number type"``, a star behind the type of a repeated one.
        A type is a protobuf type in lower case, or the name of a message or of an enumeration. An inner
        message is named after the outer one, as ``"Outer.Inner"``.
      enums: Enumeration -> name of a value -> its number.

    Returns:
      Message -> its class.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name=f"regal_jax/{package}.proto", package=package, syntax="proto3"
    )
    for name, values in (enums or {}).items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    made: dict[str, descriptor_pb2.DescriptorProto] = {}
    for path, fields in messages.items():
        outer, _, name = path.rpartition(".")
        message = made[path] = (made[outer].nested_type if outer else file.message_type).add(name=name)
        for text in fields:
            name, number, kind = text.split()
            label = proto.LABEL_REPEATED if kind.endswith("*") else proto.LABEL_OPTIONAL
            field = message.field.add(name=name, number=int(number), label=label)
            kind = kind.rstrip("*")
            if kind.islower():
                field.type = proto.Type.Value(f"TYPE_{kind.upper()}")
            else:
                field.type = proto.TYPE_ENUM if kind in (enums or {}) else proto.TYPE_MESSAGE
                field.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        path: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{path}"))
        for path in messages
    }
