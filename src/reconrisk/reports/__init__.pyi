from .audit.model_card import model_card as model_card
from .corridor import write_surface as write_surface
