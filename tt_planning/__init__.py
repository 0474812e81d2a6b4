"""Robot models, kinematics, racket contact, hit planning and quintic joint trajectories."""
