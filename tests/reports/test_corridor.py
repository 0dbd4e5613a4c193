import numpy as np
from PIL import Image

from reconrisk.bounds.corridor import corridor_curve, risk, risk_surface
from reconrisk.core.mechanism import Gaussian
from reconrisk.reports.corridor import write_surface


def test_corridor_and_surface_become_pictures(tmp_path):
    corridor = risk(Gaussian(noise_multiplier=0.5), dimension=8, norm=1.0, mse=0.02, prior_success=0.1)
    drawn = corridor.save(tmp_path / "corridor.png", curve=corridor_curve(corridor, points=9))
    surface = risk_surface(
        noise_multipliers=np.linspace(0.5, 2, 4),
        mse=np.linspace(0.05, 0.9, 4),
        dimension=1,
        norm=1.0,
        prior_success=0.1,
    )
    for path in (drawn, write_surface(surface, tmp_path / "surface.svg")):
        assert path.stat().st_size > 5000
    with Image.open(drawn) as picture:
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 50
