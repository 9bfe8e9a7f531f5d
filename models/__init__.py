"""Trained models of cdcd: data only. `cdcd models` lists them, `cdcd.load("tales")` loads one."""
