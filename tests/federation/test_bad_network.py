"""A whole federation over TLS behind proxies that delay, limit and cut: the model is the simulator's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from linking import FlowerLink, SiteSession, proxy
from rehearsing import Rehearsed
from test_coordinator import same_model

import fedra
import tiny
from fedra.federation import keys
from fedra.federation.admissions import admit_site
from fedra.federation.invitation import read_request
from fedra.federation.site_folder import open_site_invitation

pytestmark = [pytest.mark.usefixtures("without_curves"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_a_federation_behind_a_bad_network_has_the_simulators_model(tmp_path: Path) -> None:
    table = tiny.table(algorithm={"name": "scaffold"}, model={"name": "mlp", "hidden": [300, 300]}, rounds=3)
    rehearsed = Rehearsed(tmp_path, table, sites=2, rules={"deadline": 300})
    base = tmp_path / "coordinator"
    link = FlowerLink(base / "spool")
    certificates = []
    for name in rehearsed.places:
        admission = admit_site(base, read_request(tmp_path / name / f"{name}.site"))
        certificates.append(admission.certificate)
        link.admit(name, keys.parse_certificate(admission.certificate, name))
    _, port = link.start("127.0.0.1", 0, keys.server_context(base, certificates))
    rehearsed.link = link  # type: ignore[assignment]
    with proxy(port, delay=0.02, rate=10e6, cut=(300_000, 2_500_000)) as (near, cuts):
        sessions = []
        for name in rehearsed.places:
            authority = keys.to_pem(open_site_invitation(tmp_path / name).authority)
            context = keys.site_context(tmp_path / name, authority)
            node = rehearsed.nodes[name]
            session = SiteSession(tmp_path / name, f"127.0.0.1:{near}", context, node.answer, rehearsed.told.append)
            sessions.append(session)
            threading.Thread(target=session.run, daemon=True).start()
        try:
            rehearsed.run()
        finally:
            for session in sessions:
                session.stopped.set()
            link.close()
    fedra.run(table, out=tmp_path / "simulator")
    assert same_model(tmp_path / "run", tmp_path / "simulator")
    assert len(cuts) >= 3
