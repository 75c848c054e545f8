"""The metrics of several replicas on one page: each series carries the name of the replica that it is of.

Prometheus must know which process a counter belongs to: behind one address that answers for another replica at every
scrape, counters would seem to jump back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

REPLICA = "replica"
"""The label that is added."""


def labelled(registry: CollectorRegistry, replica: str) -> list[Metric]:
    """Read all series of one process, and name the replica that they are of.

    Parameters
    ----------
    registry : CollectorRegistry
    replica : str
        Among all replicas this name is one process's alone.

    Returns
    -------
    list of Metric
        Plain records, which may be sent to another process.
    """
    families = []
    for family in registry.collect():
        copy = Metric(family.name, family.documentation, family.type, family.unit)
        copy.samples = [sample._replace(labels={REPLICA: replica, **sample.labels}) for sample in family.samples]
        families.append(copy)
    return families


class AllReplicas(Collector):
    """What several replicas gave, family by family, as the text formats demand it.

    Parameters
    ----------
    replicas : iterable of sequence of Metric
        What :func:`labelled` made of each.
    """

    def __init__(self, replicas: Iterable[Sequence[Metric]]) -> None:
        self._families: dict[str, Metric] = {}
        for families in replicas:
            for family in families:
                whole = self._families.get(family.name)
                if whole is None:
                    whole = Metric(family.name, family.documentation, family.type, family.unit)
                    self._families[family.name] = whole
                whole.samples.extend(family.samples)

    def collect(self) -> Iterator[Metric]:
        """Give each family once, with the series of every replica."""
        return iter(self._families.values())


def together(replicas: Iterable[Sequence[Metric]]) -> CollectorRegistry:
    """Make one registry of what several replicas gave, to be written as a page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AllReplicas(replicas))
    return registry
