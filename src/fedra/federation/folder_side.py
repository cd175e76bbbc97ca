"""A site as its folder describes it: its data, its policy, and what it says of both to the coordinator."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

import torch

import fedra
from fedra.experiment.cohort import Expected
from fedra.federation.declared_uploads import declare_uploads, demands_of, imported_code, upload_bytes
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.local_data.identities import open_identities
from fedra.federation.local_data.matching import person_tokens, read_secret, secret_mark
from fedra.federation.local_data.site_cache import has_fresh_data, open_data, take_fresh_data
from fedra.federation.local_data.site_data import SiteData
from fedra.federation.policy import Policy, refuse
from fedra.federation.site_config import SiteConfig, read_site
from fedra.federation.site_folder import is_approved
from fedra.federation.site_job import SiteJob, build_site_job
from fedra.federation.wire import ClientWords, SiteWords
from fedra.trust import allow_imports

MODELS_IN_MEMORY = 6
"""How many models a site holds in memory while it trains: received, trained, gradient, optimizer, state, upload."""
MODELS_ON_DISK = 3
"""How many models a site must have room for: the start, the state of a round, and the answer."""


class FolderSide:
    """A site's data and policy, out of the folder that `fedra site init` made.

    Args:
        folder: The folder.
        newest: Whether to look at data that were read anew before the site uses them.
    """

    def __init__(self, folder: Path, *, newest: bool = False) -> None:
        self.folder, self._newest = folder, newest
        self._data: tuple[DataSchema, SiteData] | None = None

    @cached_property
    def site(self) -> SiteConfig:
        """The content of `site.toml`, as it was when the site joined."""
        return read_site(self.folder)

    @property
    def policy(self) -> Policy:
        """What the site allows."""
        return self.site.policy

    def data(self, plan: FederationPlan) -> SiteData:
        """Return the site's data for a plan."""
        if self._data is None or self._data[0] != plan.schema:
            self._data = (plan.schema, open_data(self.folder, self.site, plan.schema, newest=self._newest))
        return self._data[1]

    def has_changed(self) -> bool:
        """Return whether the data were read anew since the site described itself."""
        return has_fresh_data(self.folder)

    def renew(self) -> bool:
        """Use data that were read anew; returns whether there were any."""
        if not take_fresh_data(self.folder):
            return False
        self._data = None
        return True

    def check(self, plan: FederationPlan) -> list[str]:
        """Return why the site does not take part in a plan; nothing if it does."""
        reasons = self.check_policy(plan)
        if not reasons:
            reasons = [*check_sizes(self.data(plan), self.policy), *self.check_resources(plan)]
        if not reasons and plan.schema.match == "secret":
            read_secret(self.folder)  # raises a sentence for the site's own terminal
        if not reasons and not is_approved(self.folder, plan):
            reasons = [f"no person at this site approved the plan {plan.short_digest}: `fedra site approve`"]
        return reasons

    def check_policy(self, plan: FederationPlan) -> list[str]:
        """Return why the site's policy refuses a plan; builds nothing that the policy refuses by name."""
        reasons = refuse(demands_of(plan), self.policy)
        if reasons:
            return reasons
        with self.imports(plan):
            return refuse(demands_of(plan, self.uploads(plan)), self.policy)

    def check_resources(self, plan: FederationPlan) -> list[str]:
        """Return what this site has too little of: memory for images and training, room on the disk."""
        model, resources = upload_bytes(self.uploads(plan)), self.site.resources
        data = self.data(plan).inputs
        needed = (data.numel() * data.element_size() + MODELS_IN_MEMORY * model) / 1e9
        free = shutil.disk_usage(self.folder).free
        reasons = []
        if needed > resources.memory_gb:
            reasons.append(f"resources.memory_gb = {resources.memory_gb:g} at most: this plan needs about {needed:.2g}")
        if free < MODELS_ON_DISK * model:
            reasons.append(
                f"the disk must have {MODELS_ON_DISK * model / 1e6:,.0f} MB free for the model and its state, got "
                f"{free / 1e6:,.0f}"
            )
        return reasons

    def uploads(self, plan: FederationPlan) -> Expected:
        """Return what the largest client of this site sends in a round."""
        with self.imports(plan):
            people = max(self.data(plan).classes) if plan.schema.identities == "own" else None
            return declare_uploads(plan, people)

    def describe(self, plan: FederationPlan) -> SiteWords:
        """Return what the site says of itself: versions, and its clients in numbers that the policy lets leave."""
        data, mean, std = self.data(plan), None, None
        if self.policy.pixel_statistics:
            scale = 255.0 if data.inputs.dtype == torch.uint8 else 1.0
            mean, std = float(data.inputs.float().mean()) / scale, float(data.inputs.float().std()) / scale
        mark, people = self._tokens(plan)
        counts = zip(data.sizes(), data.classes, data.test_sizes(), people, strict=True)
        equal = plan.federation.weighting == "equal"
        return SiteWords(
            fedra=fedra.__version__,
            torch=torch.__version__,
            device=self.site.resources.device,
            clients=[
                ClientWords(
                    examples=1 if equal else self.policy.shown_count(examples),
                    classes=classes,
                    tests=self.policy.shown_count(tests) or 0,
                    people=tokens,
                )
                for examples, classes, tests, tokens in counts
            ],
            shape=plan.schema.shape,
            secret=mark,
            mean=mean,
            std=std,
        )

    def _tokens(self, plan: FederationPlan) -> tuple[str | None, list[list[str] | None]]:
        """Return the mark of the sites' secret, and the tokens of each client's people, if the plan matches people."""
        data = self.data(plan)
        if plan.schema.match == "none":
            return None, [None] * len(data.clients)
        secret, name = read_secret(self.folder), plan.federation.name
        book = open_identities(self.folder)
        people = [book.people[client][:count] for client, count in zip(data.clients, data.classes, strict=True)]
        return secret_mark(secret, name), [person_tokens(secret, name, names) for names in people]

    def build_job(self, plan: FederationPlan, numbers: Sequence[int]) -> SiteJob:
        """Return the site's job, given the numbers of its clients."""
        with self.imports(plan):
            return build_site_job(plan, self.data(plan), numbers, self.site.resources.device)

    def imports(self, plan: FederationPlan) -> AbstractContextManager[None]:
        """Allow the import of what a plan names only if the policy lists every one of its names."""
        return allow_imports(all(name in self.policy.code for name in imported_code(plan)))


def check_sizes(data: SiteData, policy: Policy) -> list[str]:
    """Return which clients have too few examples for the policy."""
    small = [size for size in data.sizes() if size < policy.examples]
    if not small:
        return []
    which = "it has" if len(data.clients) == 1 else f"{len(small)} of {len(data.clients)} clients have"
    return [f"policy.examples = {policy.examples} at least: {which} {min(small)}"]
