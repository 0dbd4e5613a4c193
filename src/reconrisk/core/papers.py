"""Papers that this package implements, and references to statements in them."""

from __future__ import annotations

from dataclasses import dataclass

from reconrisk.core.storage.serialization import serializable


@serializable("reference")
@dataclass(frozen=True)
class Reference:
    """A statement in a paper, from which a number follows.

    Attributes:
        statement: Number of the theorem, proposition or section.
        source: Short name of the paper, a key of :data:`PAPERS`, or a full citation.

    >>> print(Reference("Theorem 2", "guo2022"))
    Theorem 2, guo2022
    """

    statement: str
    source: str

    def __str__(self) -> str:
        """Return the statement, then the source."""
        return f"{self.statement}, {self.source}"


PAPERS = {
    "riess2025": (
        "Riess, Schwethelm, Kaiser, Mueller, Schnabel, Rueckert, Ziller (2025). From Mean to Extreme: Formal "
        "Differential Privacy Bounds on the Success of Real-World Data Reconstruction Attacks. "
        "https://arxiv.org/abs/2402.12861"
    ),
    "guo2022": (
        "Guo, Karrer, Chaudhuri, van der Maaten (2022). Bounding Training Data Reconstruction in Private (Deep) "
        "Learning. https://arxiv.org/abs/2201.12383"
    ),
    "balle2022": (
        "Balle, Cherubin, Hayes (2022). Reconstructing Training Data with Informed Adversaries. "
        "https://arxiv.org/abs/2201.04845"
    ),
    "meng2025": (
        "Meng, Huang, Chen, Hou, Zheng (2025). Enhanced Privacy Leakage from Noise-Perturbed Gradients via "
        "Gradient-Guided Conditional Diffusion Models. https://arxiv.org/abs/2511.10423"
    ),
    "hayes2023": (
        "Hayes, Mahloujifar, Balle (2023). Bounding Training Data Reconstruction in DP-SGD. "
        "https://arxiv.org/abs/2302.07225"
    ),
    "kaissis2023": (
        "Kaissis, Hayes, Ziller, Rueckert (2023). Bounding data reconstruction attacks with the hypothesis testing "
        "interpretation of differential privacy. https://arxiv.org/abs/2307.03928"
    ),
    "chen2025": (
        "Chen, Gursoy, Lei (2025). Optimal Defenses Against Data Reconstruction Attacks. "
        "https://arxiv.org/abs/2411.03746"
    ),
}
"""Citation of each paper by its short name."""
