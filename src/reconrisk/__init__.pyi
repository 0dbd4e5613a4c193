from . import attacks as attacks
from . import data as data
from . import metrics as metrics
from . import models as models
from .core.guarantee import Estimate as Estimate
from .core.guarantee import Guarantee as Guarantee
from .core.mechanism import Gaussian as Gaussian
from .core.mechanism import PoissonSampled as PoissonSampled
from .core.mechanism import Repeated as Repeated
from .core.mechanism import dp_sgd as dp_sgd
from .core.observation import Observation as Observation
from .core.reconstruction import Reconstruction as Reconstruction
from .core.serialization import from_json as from_json
from .core.serialization import to_json as to_json
from .core.threat import Controls as Controls
from .core.threat import Knows as Knows
from .core.threat import Sees as Sees
from .core.threat import ThreatModel as ThreatModel
from .data.load import load_dataset as load_dataset
from .metrics.scoring import score as score
from .releases.gradient import GradientMap as GradientMap

__version__: str
