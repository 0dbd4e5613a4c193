"""Maximum likelihood by damped Gauss-Newton.

Read ``problem.py`` (residual in units of the noise, and solves with its Jacobian), then ``descent.py`` (steps from one
start), then ``attack.py`` (starts one after the other). ``curvature.py`` assembles the matrix where products converge
too slowly; ``laplace.py`` treats Laplacian noise by weighted least squares.
"""
