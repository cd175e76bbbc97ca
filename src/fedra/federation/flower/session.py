"""A site's connection: it activates, waits for questions, answers them, and comes back after whatever happens."""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message

from fedra.errors import RunError
from fedra.federation.flower.fleet_client import HEARTBEAT, PatientClient, SignedCalls, is_wrong_certificate
from fedra.federation.flower.flower_codec import RecordCodec
from fedra.federation.flower.node_sessions import REPLACED
from fedra.federation.flower.objects import assemble, push_objects, release
from fedra.federation.flower.private_names import load
from fedra.federation.keys import read_key, site_files
from fedra.federation.wire import Packet, WireError

FIRST_WAIT, LONGEST_WAIT = 0.5, 10.0
TRIES = 8


class NotAdmitted(RunError):
    """The coordinator does not let this site in."""

    exit_code = 3


class Replaced(RunError):
    """Another process with the same key speaks for this site now."""

    exit_code = 3


class OtherCoordinator(RunError):
    """Another certificate than this federation's answers."""


class SiteSession:
    """Connects a site to its coordinator until the federation is over, or `alone` seconds passed without one."""

    def __init__(
        self,
        folder: Path,
        address: str,
        context: ssl.SSLContext,
        answer: Callable[[Packet], Packet],
        tell: Callable[[str], None] = lambda line: None,
        name: str = "this site",
        is_over: Callable[[], bool] = lambda: False,
        alone: float = math.inf,
    ) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        key = read_key(site_files(folder).key)
        self._signed = SignedCalls(key)
        self._public = load("public_key_to_bytes")(key.public_key())
        self._address, self._context, self._answer, self._tell, self._name = address, context, answer, tell, name
        self._is_over, self._alone = is_over, alone
        self.stopped = threading.Event()

    def run(self) -> None:
        """Serve the coordinator until `stopped` is set; raises only if there is no hope."""
        wait, told = FIRST_WAIT, 0.0
        self._reached = time.monotonic()
        while not self.stopped.is_set():
            began = time.monotonic()
            try:
                self._serve()
            except httpx.HTTPStatusError as error:
                if error.response.status_code == 409:
                    raise Replaced(
                        f"this process ends: {REPLACED}. Let {self._name} join from one machine alone; if you "
                        "did not start the other one, the key was copied: tell the coordinator"
                    ) from None
                if self._refused(error.response):
                    raise NotAdmitted(self._closed()) from None
                if error.response.status_code != 401 and time.monotonic() - told > 60:
                    told = time.monotonic()
                    self._tell(f"the coordinator answers with status {error.response.status_code}; trying again")
            except httpx.TransportError as error:
                if is_wrong_certificate(error):
                    raise OtherCoordinator(
                        f"the certificate of {self._address} must be that of this federation, got another: a proxy or "
                        "an antivirus program reads along, or it is another server; let fedra pass, or ask the "
                        "coordinator"
                    ) from None
                if time.monotonic() - self._reached > self._alone:
                    return
                if time.monotonic() - told > 60:
                    told = time.monotonic()
                    self._tell(_describe_break(error, self._address, self._name))
            except (load("ObjectPullError"), load("ObjectPushError"), WireError, ValueError) as error:
                self._tell(f"a message was lost ({type(error).__name__}); trying again")
            if time.monotonic() - began > 60:
                wait = FIRST_WAIT
            self.stopped.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _refused(self, response: httpx.Response) -> bool:
        """Return whether a refused call means that the site is not admitted; a wrong clock is corrected."""
        if response.status_code == 401 and self._signed.correct(response):
            self._tell("the clock of this machine is wrong; the coordinator's time is used")
            return False
        return response.status_code == 403

    def _closed(self) -> str:
        return f"the coordinator refused {self._name}: it is not admitted, or no longer; ask the coordinator"

    def _client(self) -> Any:
        return PatientClient.connect(self._address, self._context, self._signed)

    def _serve(self) -> None:
        client, done = self._client(), threading.Event()
        try:
            request = load("ActivateNodeRequest")(public_key=self._public, heartbeat_interval=HEARTBEAT)
            node = load("Node")(node_id=client.ActivateNode(request).node_id)
            client.tries = TRIES
            threading.Thread(target=self._beat, args=(client, node, done), daemon=True).start()
            self._tell(f"connected to {self._address}")
            while not self.stopped.is_set():
                found = client.PullMessages(load("PullMessagesRequest")(node=node))
                self._reached = time.monotonic()
                for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                    self._work(client, node, load("message_from_proto")(message), tree)
                    if self._is_over():
                        self.stopped.set()
        finally:
            done.set()
            client._client.close()

    def _beat(self, client: Any, node: Any, done: threading.Event) -> None:
        while not done.wait(HEARTBEAT):
            try:
                request = load("SendNodeHeartbeatRequest")(node=node, heartbeat_interval=HEARTBEAT)
                client.SendNodeHeartbeat(request)
            except (httpx.HTTPError, RuntimeError):
                continue  # the pull notices, and ends the session

    def _work(self, client: Any, node: Any, question: Any, tree: Any) -> None:
        """Fetch a question, answer it, and send the answer."""
        run, name = question.metadata.run_id, question.metadata.message_id
        ids = [one.object_id for one in load("iterate_object_tree")(tree)]
        contents = load("pull_objects")(ids, load("make_pull_object_fn_protobuf")(client.PullObject, node, run))
        client.ConfirmMessageReceived(
            load("ConfirmMessageReceivedRequest")(node=node, run_id=run, message_object_id=name)
        )
        packet = assemble(name, lambda one, last: contents.pop(one) if last else contents[one])
        answer = self._answer(packet)
        del packet
        self._send(client, node, run, question, answer)

    def _send(self, client: Any, node: Any, run: int, question: Any, answer: Packet) -> None:
        with load("no_object_id_recompute")():
            message = Message(RecordCodec().to_records(answer), reply_to=question)
            message.metadata.__dict__["_message_id"] = message.object_id
            message.metadata.__dict__["_src_node_id"] = node.node_id
            objects, tree = load("get_all_nested_objects")(message), load("get_object_tree")(message)
            bare = load("message_to_proto")(load("remove_content_from_message")(message))
            request = load("PushMessagesRequest")(node=node, messages_list=[bare], message_object_trees=[tree])
            try:
                pushed = client.PushMessages(request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in (410, 413):
                    raise
                late = error.response.status_code == 410
                self._tell("an answer came too late and was dropped" if late else "an answer was too large: refused")
                return
            send = load("make_push_object_fn_protobuf")(client.PushObject, node, run, pushed.session_id)
            push_objects(objects, set(pushed.objects_to_push), send)
        release(message.content)


def _describe_break(error: httpx.TransportError, address: str, name: str) -> str:
    """Say what a broken connection means: no process there, or a handshake that the coordinator ended."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) and "alert" not in str(error).lower():
        return f"the coordinator at {address} is away; trying again"
    return f"the coordinator closed the connection: {name} is not admitted (or no longer); trying again"
