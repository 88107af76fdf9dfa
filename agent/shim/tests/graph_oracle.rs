//! What graphs with an allocation should do in a random sequence of calls: codes, what they leave allocated, and how much can stay reserved for them.

use proptest::prelude::*;

use crate::support::calls::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};

/// Number of the first block of a graph in the script.
const BLOCKS: usize = 1000;
/// Functions that add a node.
const ROUTES: [&str; 3] = ["node", "any", "edges"];
/// Functions that instantiate: the last three have flags, and the last two can upload.
const WAYS: [&str; 5] = ["first", "second", "flags", "params", "thread"];

/// A call for graphs.
#[derive(Clone, Debug)]
pub enum GraphCall {
    /// A new graph that allocates, and frees that if it is closed.
    Create {
        units: u64,
        closed: bool,
        route: usize,
    },
    Instantiate {
        at: usize,
        way: usize,
        frees_at_launch: bool,
        uploads: bool,
    },
    /// Launches on the default stream, the thread's or another one.
    Launch {
        at: usize,
        stream: usize,
    },
    Upload {
        at: usize,
        stream: usize,
    },
    /// Frees what a launch has left.
    Free(usize),
    DestroyExecutable(usize),
    DestroyGraph(usize),
    Trim,
}

/// Random calls; most reserve memory.
pub fn graph_call() -> impl Strategy<Value = GraphCall> {
    let at = 0_usize..64;
    prop_oneof![
        4 => (1_u64..6, any::<bool>(), 0..ROUTES.len())
            .prop_map(|(units, closed, route)| GraphCall::Create { units, closed, route }),
        5 => (at.clone(), 0..WAYS.len(), any::<bool>(), any::<bool>())
            .prop_map(|(at, way, frees_at_launch, uploads)| GraphCall::Instantiate { at, way, frees_at_launch, uploads }),
        8 => (at.clone(), 0_usize..3).prop_map(|(at, stream)| GraphCall::Launch { at, stream }),
        2 => (at.clone(), 0_usize..3).prop_map(|(at, stream)| GraphCall::Upload { at, stream }),
        3 => at.clone().prop_map(GraphCall::Free),
        2 => at.clone().prop_map(GraphCall::DestroyExecutable),
        1 => at.prop_map(GraphCall::DestroyGraph),
        1 => Just(GraphCall::Trim),
    ]
}

struct Executable {
    frees_at_launch: bool,
    launched: bool,
}

struct Graph {
    units: u64,
    closed: bool,
    exists: bool,
    executable: Option<Executable>,
    /// A launch has left its allocation.
    left: bool,
}

/// A call with its lines; the last one has one of these codes, and those before succeed.
pub struct Step {
    pub lines: Vec<String>,
    pub codes: Vec<i32>,
}

/// Graphs that were created, in units of memory.
#[derive(Default)]
pub struct Graphs {
    all: Vec<Graph>,
    /// Most units that the driver can have reserved for them.
    pub most: u64,
}

impl Graphs {
    /// Units that launches have left allocated.
    pub fn left(&self) -> u64 {
        self.all.iter().filter(|graph| graph.left).map(|graph| graph.units).sum()
    }

    /// What was reserved for nothing is given back.
    pub fn trimmed(&mut self) {
        self.most = self.left();
    }

    fn pick(&self, at: usize) -> Option<usize> {
        (!self.all.is_empty()).then(|| at % self.all.len())
    }

    /// Units that are reserved when a graph is uploaded, as the driver does it.
    fn reserved_with(&self, graph: &Graph) -> u64 {
        self.left() - if graph.left { graph.units } else { 0 } + graph.units
    }

    /// The codes of a call that reserves memory for a graph and then has another code. `others` are units of other allocations.
    fn reserving(&self, graph: &Graph, code: i32, (others, limit): (u64, u64)) -> Vec<i32> {
        // what it has left itself is known to be its own once this executable was launched
        let launched = graph.executable.as_ref().is_some_and(|executable| executable.launched);
        let own = if graph.left && launched { graph.units } else { 0 };
        if others + self.left() - own + graph.units <= limit {
            vec![code]
        } else if self.reserved_with(graph) <= self.most {
            // the limit was lowered, and perhaps the memory is still reserved from before
            vec![OUT_OF_MEMORY, code]
        } else {
            vec![OUT_OF_MEMORY]
        }
    }

    /// What should happen; `None` for a call of nothing.
    pub fn step(&self, call: &GraphCall, used_and_limit: (u64, u64), unit: u64) -> Option<Step> {
        let one = |line: String, codes: Vec<i32>| Some(Step { lines: vec![line], codes });
        match *call {
            GraphCall::Create { units, closed, route } => {
                let (number, route) = (self.all.len(), ROUTES[route]);
                let block = BLOCKS + number;
                let mut lines =
                    vec![format!("graph {number}"), format!("graph-alloc {number} {block} {} {route}", units * unit)];
                lines.extend(closed.then(|| format!("graph-free {number} {block} {route}")));
                Some(Step { lines, codes: vec![SUCCESS] })
            }
            GraphCall::Instantiate { at, way, frees_at_launch, uploads } => {
                let number = self.pick(at).filter(|number| self.all[*number].exists)?;
                let graph = &self.all[number];
                let code = if graph.executable.is_some() { INVALID_VALUE } else { SUCCESS };
                let (others, limit) = used_and_limit;
                let fits = !(uploads && way > 2) || others + self.left() + graph.units <= limit;
                let flags = u64::from(frees_at_launch) | u64::from(uploads && way > 2) << 1;
                let codes = vec![if fits { code } else { OUT_OF_MEMORY }];
                one(format!("instantiate {number} {flags} {}", WAYS[way]), codes)
            }
            GraphCall::Launch { at, stream } => {
                let number = self.pick(at)?;
                let graph = &self.all[number];
                let again = graph.executable.as_ref()?.frees_at_launch;
                let code = if graph.left && !again { INVALID_VALUE } else { SUCCESS };
                let line = match stream {
                    0 => format!("launch {number}"),
                    1 => format!("launch {number} 1"),
                    _ => format!("launch-thread {number}"),
                };
                one(line, self.reserving(graph, code, used_and_limit))
            }
            GraphCall::Upload { at, stream } => {
                let number = self.pick(at)?;
                let graph = &self.all[number];
                graph.executable.as_ref()?;
                let line = match stream {
                    0 => format!("upload {number}"),
                    1 => format!("upload {number} 1"),
                    _ => format!("upload-thread {number}"),
                };
                one(line, self.reserving(graph, SUCCESS, used_and_limit))
            }
            GraphCall::Free(at) => {
                let number = self.pick(at)?;
                let code = if self.all[number].left { SUCCESS } else { INVALID_VALUE };
                one(format!("free {}", BLOCKS + number), vec![code])
            }
            GraphCall::DestroyExecutable(at) => {
                let number = self.pick(at).filter(|number| self.all[*number].executable.is_some())?;
                one(format!("executable-destroy {number}"), vec![SUCCESS])
            }
            GraphCall::DestroyGraph(at) => {
                let number = self.pick(at).filter(|number| self.all[*number].exists)?;
                one(format!("graph-destroy {number}"), vec![SUCCESS])
            }
            GraphCall::Trim => one("graph-trim".to_owned(), vec![SUCCESS]),
        }
    }

    /// The call had this code.
    pub fn after(&mut self, call: &GraphCall, code: i32) {
        if code == OUT_OF_MEMORY {
            // before a call is refused, everything is trimmed
            self.trimmed();
            return;
        }
        match *call {
            GraphCall::Create { units, closed, .. } => {
                self.all.push(Graph { units, closed, exists: true, executable: None, left: false });
            }
            GraphCall::Instantiate { at, way, frees_at_launch, uploads } => {
                let Some(number) = self.pick(at).filter(|_| code == SUCCESS) else { return };
                if uploads && way > 2 {
                    self.most = self.most.max(self.reserved_with(&self.all[number]));
                }
                let frees_at_launch = frees_at_launch && way > 1;
                self.all[number].executable = Some(Executable { frees_at_launch, launched: false });
            }
            GraphCall::Launch { at, .. } | GraphCall::Upload { at, .. } => {
                let Some(number) = self.pick(at) else { return };
                // also if the driver refuses the launch afterwards
                self.most = self.most.max(self.reserved_with(&self.all[number]));
                if code == SUCCESS && matches!(call, GraphCall::Launch { .. }) {
                    let graph = &mut self.all[number];
                    graph.left = !graph.closed;
                    graph.executable.iter_mut().for_each(|executable| executable.launched = true);
                }
            }
            GraphCall::Free(at) => {
                let Some(number) = self.pick(at) else { return };
                self.all[number].left = false;
            }
            GraphCall::DestroyExecutable(at) => {
                let Some(number) = self.pick(at) else { return };
                self.all[number].executable = None;
            }
            GraphCall::DestroyGraph(at) => {
                let Some(number) = self.pick(at) else { return };
                self.all[number].exists = false;
            }
            GraphCall::Trim => self.trimmed(),
        }
    }
}
