"""A site whose clients are some of a partition's: for rehearsals, where one data set stands in for many sites."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

import fedra
from fedra.experiment.build import Built
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.local_data.site_data import SiteData
from fedra.federation.policy import Policy
from fedra.federation.rehearsal import REHEARSAL, rehearsed_data
from fedra.federation.site_job import SiteJob, build_site_job
from fedra.federation.wire import ClientWords, SiteWords


class PartitionSide:
    """A site with some clients of a configuration's partition; it takes part in every plan."""

    def __init__(self, built: Built, clients: Sequence[int]) -> None:
        self._built, self._clients = built, clients

    @property
    def policy(self) -> Policy:
        """What the site allows: everything."""
        return REHEARSAL

    @cached_property
    def data(self) -> SiteData:
        """The examples of this site's clients."""
        return rehearsed_data(self._built, self._clients)

    def check(self, plan: FederationPlan) -> list[str]:
        """Return no reason."""
        return []

    def has_changed(self) -> bool:
        """Return that data in memory never change."""
        return False

    def renew(self) -> bool:
        """Return that there are no other data."""
        return False

    def describe(self, plan: FederationPlan) -> SiteWords:
        """Return what the site says of itself."""
        counts = zip(self.data.sizes(), self.data.classes, self.data.test_sizes(), strict=True)
        return SiteWords(
            fedra=fedra.__version__,
            torch=torch.__version__,
            clients=[ClientWords(examples=size, classes=classes, tests=tests) for size, classes, tests in counts],
            shape=plan.schema.shape,
        )

    def build_job(self, plan: FederationPlan, numbers: Sequence[int]) -> SiteJob:
        """Return the site's job, given the numbers of its clients."""
        return build_site_job(plan, self.data, numbers)
