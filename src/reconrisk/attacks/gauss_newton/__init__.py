"""Maximum likelihood by damped Gauss-Newton.

Read ``problem.py`` (residual in units of the noise, and solves with its Jacobian), then ``descent.py`` (steps from one
start), then ``attack.py`` (a sequence of starts). ``curvature.py`` assembles the normal matrix where matrix-free
products converge too slowly; ``laplace.py`` treats Laplacian noise by weighted least squares.
"""
