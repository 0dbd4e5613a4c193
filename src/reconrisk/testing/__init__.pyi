from .attack_rules import check_attack as check_attack
from .contract import BrokenContract as BrokenContract
from .contract import CheckReport as CheckReport
from .defense_rules import check_defense as check_defense
from .metric_rules import check_metric as check_metric
from .prior_rules import check_prior as check_prior
