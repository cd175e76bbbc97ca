"""Build what the coordinator knows of a federation: the job without data, and who tests its model."""

from __future__ import annotations

from dataclasses import replace

from fedra.config.names import build_algorithm
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.data_rule import Public
from fedra.core.device import build_device
from fedra.core.job import ServerJob
from fedra.core.model import Model
from fedra.core.precision import build_precision
from fedra.core.robust_fold import RootSelecting
from fedra.data import Dataset
from fedra.errors import ConfigError
from fedra.evaluation.metrics import needs_scores
from fedra.experiment.build import (
    ServerBuilt,
    build_module,
    build_public,
    check_settings,
    local_training,
)
from fedra.experiment.evaluators.evaluator import Classification, Evaluator, choose_protocol
from fedra.experiment.evaluators.round_summary import choose_measures
from fedra.experiment.evaluators.verification_evaluator import VerificationEvaluator
from fedra.experiment.private_run import add_privacy
from fedra.experiment.secure_run import is_secure
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.roster import FederationRoster
from fedra.federation.site_job import plan_transform
from fedra.models.find_head import unwrap_model
from fedra.privacy.secure.secure_messages import FEWEST


def check_plan(plan: FederationPlan) -> Algorithm:
    """Raise on settings that a federation cannot have; returns the algorithm."""
    config = plan.config
    algorithm = build_algorithm(config.algorithm)
    check_settings(config, algorithm)
    if config.mode != "federated":
        raise ConfigError(f"a federation needs mode = 'federated', got '{config.mode}': remove it")
    if config.precision == "auto":
        raise ConfigError(
            "a federation needs the same precision at all sites, got precision = 'auto', which each machine would "
            "choose for itself: set 'float32' or 'bfloat16'"
        )
    if algorithm.owns_classes != (plan.schema.identities == "own"):
        needs = "own" if algorithm.owns_classes else "agreed"
        raise ConfigError(
            f"the algorithm '{config.algorithm.name}' needs data.identities = '{needs}', got "
            f"'{plan.schema.identities}': change one of them"
        )
    wanted = [name for name, value in config.diagnostics.model_dump().items() if value]
    if wanted:
        raise ConfigError(f"diagnostics.{wanted[0]} needs the clients' data, which a federation does not have: drop it")
    if config.faults.dropout or config.faults.straggler or config.faults.deadline is not None:
        raise ConfigError("[faults] simulates failures, and a federation has real ones: remove dropout and deadline")
    if config.attack.name != "none":
        raise ConfigError("[attack] simulates malicious clients, which a federation does not do: remove the section")
    if isinstance(algorithm.combine, RootSelecting):
        raise ConfigError(
            f"the combine rule '{algorithm.combine.name}' needs clean examples on the server, which a coordinator does "
            "not have: use another one, such as geometric-median"
        )
    _check_private_plan(plan)
    return algorithm


def _check_private_plan(plan: FederationPlan) -> None:
    """Raise if a plan asks for protection that a federation does not have, or tests that privacy does not cover."""
    config = plan.config
    if is_secure(config) and min(plan.federation.least, plan.federation.sites) < FEWEST:
        raise ConfigError(
            f"a secure sum needs at least {FEWEST} sites, got federation.sites = {plan.federation.sites} and "
            f"federation.least = {plan.federation.least}: set both to {FEWEST} or more"
        )
    if config.privacy.band > 1:
        raise ConfigError(
            f"privacy.band = {config.privacy.band} needs the same clients from the first round to the last, but sites "
            "may join a federation later, which changes the turns: remove privacy.band"
        )
    if config.privacy.level == "example":
        if config.privacy.epsilon is None or config.privacy.noise == "auto":
            raise ConfigError(
                "a federation at the level of examples needs privacy.epsilon, which every site keeps by itself, and "
                "privacy.noise as a number, which all sites add: set both"
            )
        if plan.federation.weighting != "examples":
            raise ConfigError(
                "a federation at the level of examples needs the sites' numbers of examples to state its epsilon, got "
                f"federation.weighting = '{plan.federation.weighting}': set it to 'examples'"
            )
    tested = plan.federation.evaluation in ("sites", "both")
    if config.privacy.level != "none" and config.privacy.figures == "covered" and tested:
        raise ConfigError(
            f"federation.evaluation = '{plan.federation.evaluation}' tests on the sites' images, which the guarantee "
            "does not cover: set it to 'server' or 'none', or privacy.figures to 'all'"
        )


def build_server(
    plan: FederationPlan, roster: FederationRoster, test: Dataset | None = None, sites: Evaluator | None = None
) -> ServerBuilt:
    """Build the server's job and its evaluator.

    Args:
        plan: The plan.
        roster: The clients; their sizes and classes are all that the server knows of their data.
        test: The coordinator's own data set, for `evaluation = "server"` and "both".
        sites: The evaluator that asks the sites.

    Returns:
        What the rounds need.
    """
    algorithm, config = check_plan(plan), plan.config
    device = build_device(config.device)
    blank = plan.blank_dataset(roster.classes)
    dataset = blank if test is None else replace(test, train=blank.train, groups=None)
    dataset = replace(dataset, classes=blank.classes, mean=blank.mean, std=blank.std)
    transform = plan_transform(plan.schema)
    protocol = choose_protocol(config.evaluation.protocol, dataset) if test is not None else "classification"
    measures = choose_measures(config.evaluation, protocol)
    known = dataset.known_test
    public: Public | None = None
    if config.public is not None:
        public = build_public(config.public, blank, transform)
    job = ServerJob(
        algorithm=algorithm,
        model=Model(build_module(config, dataset), device, build_precision(config.precision, device), config.compile),
        clients=roster,
        local=local_training(config.local, config.rounds),
        classes=len(dataset.classes),
        seed=config.seed,
        shape=tuple(plan.schema.shape),
        test=Examples(known.inputs, known.targets, transform).kept() if len(known) else None,
        owners=roster.owners() if algorithm.owns_classes else None,
        public=public,
        keep_scores=needs_scores(measures.single),
    )
    job = replace(job, algorithm=add_privacy(config, job))
    own: Evaluator = Classification(measures.single)
    if protocol == "verification":
        own = VerificationEvaluator(dataset, transform)
    evaluator = own if sites is None else sites
    return ServerBuilt(
        job=job, dataset=dataset, protocol=protocol, evaluator=evaluator, measures=measures, unwrap=unwrap_model
    )
