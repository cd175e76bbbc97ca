"""The job on Flower: its simulation engine with one Ray actor per core, one thread each."""

from __future__ import annotations

import time
from functools import cache

import torch
from bare import Pair, Work, cnn, train_client
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peer_jobs.timing import copies, gaps, must_differ


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
        model = cnn()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_client(model, _data(work)[int(context.node_config["partition-id"])], work)
        reply = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": work.images}),
        }
        return Message(content=RecordDict(reply), reply_to=message)

    return app


def server_app(work: Work, rounds: int, moments: list[float]) -> ServerApp:
    """A server that notes when each round ends."""
    app = ServerApp()

    def note(round: int, arrays: ArrayRecord) -> None:
        moments.append(time.perf_counter())

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=work.clients)
        start = cnn().state_dict()
        arrays = ArrayRecord(start)
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=note)
        must_differ(copies(start.values()), copies(result.arrays.to_torch_state_dict().values()))

    return app


def job(work: Work, rounds: int, workers: int) -> list[float]:
    """Seconds of each round."""
    moments: list[float] = []
    resources = {"init_args": {"num_cpus": workers}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app(work, rounds, moments), client_app(work), work.clients, backend_config=resources)
    return gaps(moments)
