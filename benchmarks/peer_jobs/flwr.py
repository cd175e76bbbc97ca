"""The job on Flower: its simulation engine with one Ray actor per core, one thread each."""

from __future__ import annotations

import time
from functools import cache

import torch
from bare import Pair, Work, train_client
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peer_jobs.timing import Trained, copies


@cache
def _data(work: Work) -> list[Pair]:
    """Every actor makes the clients' data once."""
    return work.data()


def client_app(work: Work) -> ClientApp:
    """A client that trains by the bare loop."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = work.network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_client(model, _data(work)[int(context.node_config["partition-id"])], work)
        reply = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": work.images}),
        }
        return Message(content=RecordDict(reply), reply_to=message)

    return app


def server_app(work: Work, rounds: int, trained: Trained) -> ServerApp:
    """A server that notes when each round ends, and the weights at both ends."""
    app = ServerApp()

    def note(round: int, arrays: ArrayRecord) -> None:
        trained.moments.append(time.perf_counter())

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        # Otherwise the first round trains those clients alone that have connected by then.
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)
        start = work.network().state_dict()
        trained.start.extend(copies(start.values()))
        arrays = ArrayRecord(start)
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=note)
        trained.end.extend(result.arrays.to_torch_state_dict().values())

    return app


def job(work: Work, rounds: int, workers: int) -> Trained:
    """Train, and note when each round ends."""
    trained = Trained([], [], [])
    resources = {"init_args": {"num_cpus": workers}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app(work, rounds, trained), client_app(work), work.clients, backend_config=resources)
    return trained
