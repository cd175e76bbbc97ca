"""Flower's link state within the coordinator: nodes, questions, answers, and the objects that they are cut into."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedra.federation.flower.flower_codec import RecordCodec
from fedra.federation.flower.objects import Read, assemble
from fedra.federation.flower.private_names import load
from fedra.federation.flower.spool import SpooledStore
from fedra.federation.wire import Packet, WireError
from fedra.runners.pages import return_freed_memory

NO_CODE = b"no code travels"
KIND = "query.fedra"
LARGE = 2**20
"""Bytes of an answer after which freed memory is given back to the system."""
DEFAULT_LIMIT = 64 * 2**20
"""Most bytes of an answer's tensors before the plan's model is known."""


class LinkState:
    """A run without an app: what Flower's server keeps, without its programs. Large objects are in the folder."""

    def __init__(self, folder: Path) -> None:
        objects, self.factory = load("get_objectstore_linkstate_factories")(
            ":flwr-in-memory:", load("get_federation_manager")()
        )
        objects.store_instance, self.folder = SpooledStore(folder), folder
        self.state = self.factory.state()
        self.lock, self.most_bytes = threading.RLock(), DEFAULT_LIMIT
        self._codec = RecordCodec()
        fab = load("Fab")(hashlib.sha256(NO_CODE).hexdigest(), NO_CODE, {})
        self.state.store_fab(fab)
        self.run = self.state.create_run(
            "fedra/fedra",
            "0",
            fab.hash_str,
            {},
            load("NOOP_FEDERATION_ID"),
            None,
            load("NOOP_FLWR_AID"),
            load("TaskType").SERVER_APP,
        )
        (task,) = self.state.get_tasks(run_ids=[self.run])
        self._task = task.task_id
        self.state.claim_task(self._task)
        self.state.activate_task(self._task)
        identity = load("TaskIdentity")
        identity.task_id, identity.run_id, identity.node_id = self._task, self.run, load("SUPERLINK_NODE_ID")

    def beat(self) -> None:
        """Tell the link state that its run is alive."""
        self.state.acknowledge_task_heartbeat(self._task)

    def admit(self, public_key: bytes) -> int:
        """Register a node by its public key and return its number."""
        known = self.state.get_node_id_by_public_key(public_key)
        if known is not None:
            return int(known)
        return int(self.state.create_node(load("NOOP_FLWR_AID"), load("NOOP_ACCOUNT_NAME"), public_key, 0))

    def remove(self, node: int) -> None:
        """Remove a node: its next request is refused."""
        self.state.delete_node(load("NOOP_FLWR_AID"), node)

    def push(self, node: int, packet: Packet, seconds: float) -> str:
        """Store a question with all its objects, and return its identifier."""
        with load("no_object_id_recompute")():
            message = Message(self._codec.to_records(packet), node, KIND, ttl=seconds)
            message.metadata.__dict__["_message_id"] = message.object_id
            objects, tree = load("get_all_nested_objects")(message), load("get_object_tree")(message)
            bare = load("remove_content_from_message")(message)
            with self.lock:  # no node may see the question before its objects are there
                session = self.state.start_session(self.run)
                stored, missing = self.state.store_message_and_object_tree(bare, tree, session)
                if not stored:
                    raise WireError("the question could not be stored in Flower's link state")
                for name in missing:
                    self.state.store_object(self.run, session, name, objects[name].deflate())
        return str(message.metadata.message_id)

    def take(self, question: str) -> str | None:
        """Take the complete answer to a question out of the link state, and return its name; None if there is none.

        Its objects stay in the store until the answer is read or forgotten.
        """
        with self.lock:
            found = self.state.get_message_res(message_ids={question}, run_id=self.run)
            if not found:
                return None
            message = found[0]
            name = str(message.metadata.message_id)
            self.state.delete_messages(message_ins_ids={question})
            self.state.object_store.delete(question)
            if message.has_error():
                self.forget(name)
                raise WireError(f"its node is not reachable ({message.error.reason or message.error.code})")
            return name

    def read(self, name: str) -> Packet:
        """Read an answer that was taken, and forget its objects."""
        try:
            packet = assemble(name, self._reader(name), self.most_bytes)
        finally:
            self.forget(name)
        if packet.nbytes > LARGE:
            return_freed_memory()
        return packet

    def _reader(self, name: str) -> Read:
        """Return what reads the objects of an answer, and no other answer's."""
        store = self.state.object_store
        own = {tree.object_id for tree in load("iterate_object_tree")(store.get_object_tree(name))}

        def read(one: str, last: bool) -> bytes:
            content: bytes | None = store.get(one) if one in own else None
            if not content:
                raise WireError("the answer is not complete")
            return content

        return read

    def forget(self, name: str) -> None:
        """Forget an answer that was taken: Flower keeps objects until their arrival is confirmed."""
        with self.lock:
            self.state.object_store.delete(name)

    def drop(self, question: str) -> None:
        """Forget a question and its answer."""
        with self.lock:
            self.state.delete_messages(message_ins_ids={question})
            self.state.object_store.delete(question)

    def close(self) -> None:
        """Forget everything that is on its way."""
        self.state.object_store.close()

    def locked(self, call: Callable[[], Any]) -> Any:
        """Return what a call to the link state returns, with no question half stored."""
        with self.lock:
            return call()
