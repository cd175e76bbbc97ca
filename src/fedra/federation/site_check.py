"""What a site's data are, what leaves the site and what never does, in plain words.

The list of what leaves is the declaration that coordinator and site check every upload with, not a description of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedra.config.names import build_algorithm
from fedra.errors import FedraError
from fedra.experiment.cohort import Expected, Forms
from fedra.experiment.secure_run import is_secure
from fedra.federation import keys
from fedra.federation.declared_uploads import demands_of, upload_bytes
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.folder_side import FolderSide, check_sizes
from fedra.federation.local_data.labels import describe_mapping
from fedra.federation.local_data.matching import read_secret, secret_fingerprint
from fedra.federation.local_data.site_cache import has_fresh_data, is_changed
from fedra.federation.local_data.site_data import SiteData
from fedra.federation.network_check import check_network
from fedra.federation.policy import Policy, refuse
from fedra.federation.site_folder import is_approved, open_site_invitation

SHOWN = 12
"""Most classes that are listed with their counts."""


@dataclass(frozen=True)
class SiteReport:
    """The result of a check: lines under titles, and whether the site could join now."""

    sections: list[tuple[str, list[str]]]
    ready: bool

    def lines(self) -> list[str]:
        """Return the report as text, titles on the left."""
        width = max(len(title) for title, _ in self.sections) + 2
        return [
            f"{title if number == 0 else '':<{width}}{line}"
            for title, lines in self.sections
            for number, line in enumerate(lines)
        ]


def check_site_folder(folder: Path, *, long: bool = False, network: bool = True) -> SiteReport:
    """Check a site: its data against the plan, the plan against its policy, and the way to the coordinator.

    Args:
        folder: The site's folder.
        long: Whether to list every tensor that leaves.
        network: Whether to connect to the coordinator.

    Returns:
        The report.
    """
    side, invitation = FolderSide(folder, newest=True), open_site_invitation(folder)
    plan, policy = invitation.plan, side.policy
    sections: list[tuple[str, list[str]]] = []
    refused = refuse(demands_of(plan), policy)
    try:
        data = side.data(plan)
        refused += check_sizes(data, policy)
        sections += describe_data(data, side, plan)
    except FedraError as error:
        return SiteReport([("data", [f"cannot be used: {error}"]), ("plan", [describe_plan(plan)])], ready=False)
    sections.append(("plan", [describe_plan(plan)]))
    if any(reason.startswith("policy.code") for reason in refused):
        sections.append(("leaves", ["unknown: the plan names code that the policy does not allow to be imported"]))
    else:
        with side.imports(plan):
            uploads = side.uploads(plan)
            refused = [*refuse(demands_of(plan, uploads), policy), *check_sizes(data, policy)]
            sections += describe_leaving(plan, uploads, policy, data, long=long)
        if lacking := side.check_resources(plan):
            sections.append(("resources", lacking))
            refused += lacking
    has_secret = True
    if plan.schema.match == "secret":
        text, has_secret = _describe_secret(folder)
        sections.append(("secret", [text]))
    sections.append(("policy", [f"refuses: {reason}" for reason in refused] or ["allows it (site.toml)"]))
    approved = is_approved(folder, plan)
    sections.append(("approved", [_describe_approval(folder, policy, approved)]))
    files = keys.site_files(folder)
    warning = keys.expiry_warning(keys.read_certificate(files.certificate), "this site", "run `fedra site renew`")
    if warning:
        sections.append(("keys", [warning]))
    admitted = True
    if network:
        context = keys.site_context(folder, keys.to_pem(invitation.authority))
        found = check_network(plan.federation.address, context)
        sections.append(("network", [found.text]))
        admitted = found.admitted
    return SiteReport(sections, ready=not refused and has_secret and approved and admitted)


def describe_plan(plan: FederationPlan) -> str:
    """Describe a plan in one line, with the digest that sites compare."""
    config = plan.config
    added = "".join(f" + {extra if isinstance(extra, str) else extra.get('name')}" for extra in config.algorithm.plus)
    epochs = f"{config.local.epochs} epoch" + ("s" if config.local.epochs > 1 else "")
    share = f", {config.cohort.fraction:.0%} of the clients in each" if config.cohort.fraction < 1 else ""
    rounds = f"{config.rounds} rounds of {epochs}{share}"
    return f"{plan.short_digest}: {config.algorithm.name}{added}, {config.model.name}, {rounds}"


def describe_data(data: SiteData, side: FolderSide, plan: FederationPlan) -> list[tuple[str, list[str]]]:
    """Describe a site's data for its own eyes: names and counts stay on this screen."""
    tests = sum(data.test_sizes())
    counted = sorted(data.counts.items(), key=lambda pair: (-pair[1], pair[0]))
    kind = "people" if plan.schema.identities == "own" else "classes"
    shown = ", ".join(f"{name} {count:,}" for name, count in counted[:SHOWN])
    more = f" and {len(counted) - SHOWN:,} more" if len(counted) > SHOWN else ""
    clients = f" in {len(data.clients):,} clients" if len(data.clients) > 1 else ""
    lines = [f"{len(data.inputs):,} images of {len(counted):,} {kind}{clients}: {shown}{more}; {tests:,} held out"]
    if has_fresh_data(side.folder):
        lines.append("read anew: a site that has joined takes them before its next round")
    if is_changed(side.folder, side.site):
        lines.append(f"the folder has changed since it was read: `fedra site refresh {side.folder}` reads it anew")
    mapping = side.site.data.labels
    labels = f"; labels: {describe_mapping(mapping)}" if mapping else ""
    notes = f" ({'; '.join(data.notes)})" if data.notes else ""
    found = [("data", lines), ("schema", [f"{plan.schema} as the plan asks{notes}{labels}"])]
    return [*found, ("warnings", list(data.warnings))] if data.warnings else found


def describe_leaving(
    plan: FederationPlan, uploads: Expected, policy: Policy, data: SiteData, *, long: bool = False
) -> list[tuple[str, list[str]]]:
    """Describe what leaves the site, what can be inferred from it, and what never leaves."""
    own = plan.schema.identities == "own"
    once = "once: versions of fedra and torch, the image size, and of each client the number of "
    numbers = ["classes" if not own else "people"]
    counts = _describe_counts(policy, plan)
    once += " and ".join([*([f"examples ({counts})"] if counts else []), *numbers])
    rule = build_algorithm(plan.config.algorithm).upload
    packed, most = ("", "") if rule is None else (f", made smaller by '{rule.name}'", "at most ")
    sent = [f"changes of {_count(uploads.delta)} of the model{packed}"]
    if uploads.buffers:
        sent.append(f"{len(uploads.buffers)} running statistics")
    for part, forms in _by_part(uploads.extras).items():
        rows = part == "sharing"
        sent.append(f"class vectors of your {max(data.classes)} people" if rows else f"{_count(forms)} of '{part}'")
    metrics = ", ".join(policy.metrics) or "no metric"
    lines = [
        once,
        f"per round and client {most}{upload_bytes(uploads) / 1e6:,.2f} MB: {', '.join(sent)}",
        f"with them the numbers examples{f' ({counts})' if counts else ''}, local steps and {metrics}",
    ]
    if plan.federation.evaluation in ("sites", "both"):
        histograms = " and histograms of similarities" if own else ""
        least = f"tests of fewer than {policy.test_examples} examples stay"
        lines.append(f"per test: numbers of examples and of right answers, loss{histograms} ({least})")
    if plan.schema.match == "secret":
        lines.append("once: a token of each person, keyed with the sites' secret, which the coordinator does not have")
    if policy.pixel_statistics:
        lines.append("once: mean and deviation of all pixels")
    if long:
        for forms in (uploads.delta, uploads.buffers, uploads.extras):
            lines += _list_forms(forms)
    inferred = [
        "the coordinator sees each update: the mix of labels can be estimated from it, and from updates of few images "
        "images may be approximated"
    ]
    if is_secure(plan.config):
        lines[1:3] = _describe_secure(uploads, data)
        inferred = [
            "the coordinator sees the sum over the sites of a round; with the help of all other sites it could compute "
            "your part"
        ]
    if own:
        inferred.append("from a class vector a face may be approximated")
    if plan.schema.match == "secret":
        inferred.append(
            "from equal tokens which people are at several sites; every site with the secret can test guesses of "
            "names, and receives the class vector of a person that it names"
        )
    never = "images, file names, folder names, " + ("names of people" if own else "numbers of images per class")
    return [("leaves", lines), ("inferable", inferred), ("never", [f"{never}, your policy, your key"])]


def _describe_secure(uploads: Expected, data: SiteData) -> list[str]:
    """Describe what leaves in a secure round."""
    clients = f"your {len(data.clients)} clients" if len(data.clients) > 1 else "your client"
    return [
        f"per round {upload_bytes(uploads) / 1e6:,.2f} MB of random-looking numbers: the changes of "
        f"{_count(uploads.delta)} of the model, summed over {clients} and masked",
        "with them public keys, encrypted shares for other sites, signatures, and which of your clients are in the "
        "sum; no numbers of examples, no steps, no metrics",
    ]


def _describe_secret(folder: Path) -> tuple[str, bool]:
    """Describe the sites' secret, and say whether it can be used."""
    try:
        return f"its fingerprint, the same at all sites: {secret_fingerprint(read_secret(folder))}", True
    except FedraError as error:
        return str(error), False


def _describe_counts(policy: Policy, plan: FederationPlan) -> str:
    if plan.federation.weighting == "equal":
        return ""
    return "exact" if policy.counts == "exact" else "rounded to two digits"


def _describe_approval(folder: Path, policy: Policy, approved: bool) -> str:
    if policy.approve == "within-policy":
        return "not needed (policy.approve = 'within-policy')"
    return "yes, this plan" if approved else f"not yet: `fedra site approve {folder}`"


def _by_part(extras: Forms) -> dict[str, Forms]:
    found: dict[str, Forms] = {}
    for path, form in extras.items():
        found.setdefault(path.partition("|")[0], {})[path] = form
    return found


def _count(forms: Forms) -> str:
    return f"{len(forms):,} {'tensor' if len(forms) == 1 else 'tensors'}"


def _list_forms(forms: Forms) -> list[str]:
    return [
        f"  {name}  {' x '.join(map(str, form.shape)) or 'a number'}  {str(form.dtype).removeprefix('torch.')}"
        for name, form in forms.items()
    ]
