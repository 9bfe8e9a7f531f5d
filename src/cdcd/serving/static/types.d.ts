// The data that the server sends and the page keeps; for the type checker alone.

interface Control {
  name: string;
  label: string;
  help: string;
  least: number;
  most: number;
  step: number;
  choices: string[];
  needs: string;
  at_a_step: boolean;
  value: number | string;
}

interface Model {
  name: string;
  task: "text" | "translation";
  model: "diffusion" | "autoregressive" | "masked";
  length: number;
  languages: string[] | null;
  fills_gaps: boolean;
  knows_ends: boolean;
  goes_back: boolean;
  controls: Control[];
}

type Values = Record<string, number | string>;

interface Change {
  step: number;
  tokens?: Record<string, number | string | null>;
  seed?: number;
  settings?: Values;
}

interface Start {
  model: string;
  given: number[];
  steps: number;
  bins?: "log" | "linear";
  t?: number[];
  u?: number[];
  curve_t?: number[];
  curve_u?: number[];
}

interface Frame {
  step: number;
  t: number;
  entropy: number;
  parts: string[];
  tokens: number[];
  p: number[];
  given: number[];
  best: Record<string, number[]>;
  words?: Record<string, string>;
}

interface End {
  text: string;
  parts: string[];
  tokens: number[];
  given: number[];
  command?: string;
  python?: string;
}

interface Recording {
  start: Start;
  frames: Frame[];
  words: Record<string, string>;
  end: End | null;
  command?: string;
}

interface Translated {
  samples: string[];
  chosen: number;
  utility: string;
  likeness: number[][];
  mean: number[];
  bonuses: number[];
  languages: string[];
  command: string;
  python: string;
}

interface ColumnState {
  model: string;
  settings: Values;
}

interface State {
  text: string;
  seed: number;
  columns: ColumnState[];
  changes: Change[];
}
