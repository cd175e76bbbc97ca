"""Every name of Flower that is not in its public interface, and that this package needs: one list, in one place.

If a newer Flower moved one of them, importing this module raises an error that says which.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from fedra.errors import ConfigError

PRIVATE: dict[str, str] = {
    # messages and their objects
    "no_object_id_recompute": "flwr.supercore.inflatable.inflatable_object",
    "get_all_nested_objects": "flwr.supercore.inflatable.inflatable_object",
    "get_object_tree": "flwr.supercore.inflatable.inflatable_object",
    "iterate_object_tree": "flwr.supercore.inflatable.inflatable_object",
    "get_object_head_values_from_object_content": "flwr.supercore.inflatable.inflatable_object",
    "HEAD_BODY_DIVIDER": "flwr.supercore.constant",
    "make_pull_object_fn_protobuf": "flwr.supercore.inflatable.inflatable_protobuf_utils",
    "make_push_object_fn_protobuf": "flwr.supercore.inflatable.inflatable_protobuf_utils",
    "ObjectPullError": "flwr.supercore.inflatable.inflatable_utils",
    "ObjectPushError": "flwr.supercore.inflatable.inflatable_utils",
    "inflate_object_from_contents": "flwr.supercore.inflatable.inflatable_utils",
    "pull_objects": "flwr.supercore.inflatable.inflatable_utils",
    "remove_content_from_message": "flwr.app.message.message",
    "message_to_proto": "flwr.common.serde",
    "message_from_proto": "flwr.common.serde",
    # the link state
    "get_objectstore_linkstate_factories": "flwr.superlink.config_loader",
    "get_federation_manager": "flwr.superlink.config_loader",
    "NOOP_FLWR_AID": "flwr.common.constant",
    "NOOP_ACCOUNT_NAME": "flwr.common.constant",
    "SUPERLINK_NODE_ID": "flwr.common.constant",
    "TIMESTAMP_HEADER": "flwr.common.constant",
    "NOOP_FEDERATION_ID": "flwr.supercore.constant",
    "TaskType": "flwr.supercore.constant",
    "InMemoryObjectStore": "flwr.supercore.object_store.in_memory_object_store",
    "InMemoryLinkState": "flwr.server.superlink.linkstate.in_memory_linkstate",
    "Fab": "flwr.supercore.fab",
    "TaskIdentity": "flwr.supercore.task_identity",
    # the Fleet interface of a server
    "fleet_handlers": "flwr.superlink.servicer.fleet",
    "authenticate_node": "flwr.superlink.routers.fleet.node_auth",
    "http_error_translator": "flwr.supercore.error.http",
    # the Fleet interface of a node
    "FleetHttpClient": "flwr.supernode.fleet_http_client",
    "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",
    "FLEET_HTTP_PUBLIC_KEY_HEADER": "flwr.supercore.constant",
    "FLEET_HTTP_SIGNATURE_HEADER": "flwr.supercore.constant",
    "public_key_to_bytes": "flwr.supercore.primitives.asymmetric",
    "sign_message": "flwr.supercore.primitives.asymmetric",
    # protobuf messages
    "Node": "flwr.proto.node_pb2",
    "ActivateNodeRequest": "flwr.proto.fleet_pb2",
    "DeactivateNodeRequest": "flwr.proto.fleet_pb2",
    "PullMessagesRequest": "flwr.proto.fleet_pb2",
    "PushMessagesRequest": "flwr.proto.fleet_pb2",
    "SendNodeHeartbeatRequest": "flwr.proto.heartbeat_pb2",
    "ConfirmMessageReceivedRequest": "flwr.proto.message_pb2",
    "PullObjectRequest": "flwr.proto.message_pb2",
    "PushObjectRequest": "flwr.proto.message_pb2",
}
"""The private names and their modules."""
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "InMemoryLinkState": (
        "acknowledge_task_heartbeat",
        "activate_task",
        "claim_task",
        "create_node",
        "create_run",
        "deactivate_node",
        "delete_messages",
        "delete_node",
        "get_message_res",
        "get_node_id_by_public_key",
        "get_tasks",
        "start_session",
        "store_fab",
        "store_message_and_object_tree",
        "store_object",
    ),
    "InMemoryObjectStore": ("delete", "get", "get_object_tree", "put"),
    "FleetHttpClient": (
        "ActivateNode",
        "ConfirmMessageReceived",
        "PullMessages",
        "PullObject",
        "PushMessages",
        "PushObject",
        "SendNodeHeartbeat",
        "_unary_unary",
    ),
    "fleet_handlers": (
        "activate_node",
        "confirm_message_received",
        "deactivate_node",
        "pull_messages",
        "pull_object",
        "push_messages",
        "push_object",
        "send_node_heartbeat",
    ),
}
"""What is used of them by name."""
TESTED = "1.41.0"
"""The version of Flower that fedra is tested with."""


_NOTHING = object()


def find_missing() -> list[str]:
    """Return the names that the installed Flower does not have, and what is missing of those that it has."""
    found = {name: _find(module, name) for name, module in PRIVATE.items()}
    names = [f"{PRIVATE[name]}.{name}" for name, value in found.items() if value is _NOTHING]
    return names + [
        f"{PRIVATE[name]}.{name}.{attribute}"
        for name, attributes in ATTRIBUTES.items()
        for attribute in attributes
        if found[name] is not _NOTHING and not hasattr(found[name], attribute)
    ]


def load(name: str) -> Any:
    """Return a private name of Flower."""
    found = _find(PRIVATE[name], name)
    if found is _NOTHING:
        raise ConfigError(
            f"fedra needs '{PRIVATE[name]}.{name}', which flwr {importlib.metadata.version('flwr')} does not have: "
            f"pip install 'flwr=={TESTED}'"
        )
    return found


def _find(module: str, name: str) -> Any:
    """Return an attribute of a module, or the module of that name within it."""
    try:
        found = getattr(importlib.import_module(module), name, _NOTHING)
        return importlib.import_module(f"{module}.{name}") if found is _NOTHING else found
    except ModuleNotFoundError as error:
        if error.name == "flwr":
            raise ConfigError("a federation needs the extra 'federation': pip install 'fedra[federation]'") from None
        return _NOTHING
