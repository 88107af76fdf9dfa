//! Random sequences of calls, whose codes and whose balance an oracle predicts: a map of what is allocated, graphs with allocations, and the limit.

use std::{
    collections::BTreeMap,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    graph_oracle::{GraphCall, Graphs, graph_call},
    support::{
        MIB, Node, Share,
        calls::{CONTEXT, Calls, INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS},
    },
};
use proptest::prelude::*;

/// Multiple of all allocations: that in which the simulated pools grow.
const UNIT: u64 = 32 * MIB;
/// The limit at first, in units.
const LIMIT: u64 = 12;
/// Families: the first six end with their context, the next two are of pools, and the last has no context.
const KINDS: [&str; 9] = ["plain", "managed", "pitch", "array", "volume", "mipmap", "async", "thread", "virtual"];
const POOLS: std::ops::Range<usize> = 6..8;
const VIRTUAL: usize = 8;

#[derive(Clone, Debug)]
enum Call {
    Allocate { kind: usize, units: u64 },
    Free(usize),
    StreamFree(usize),
    Map(usize),
    Unmap(usize),
    Retain(usize),
    CreateContext,
    Use(usize),
    Destroy(usize),
    Trim,
    Resize(u64),
    Graph(GraphCall),
}

fn call() -> impl Strategy<Value = Call> {
    let at = 0_usize..64;
    prop_oneof![
        8 => (0..KINDS.len(), 1_u64..6).prop_map(|(kind, units)| Call::Allocate { kind, units }),
        5 => at.clone().prop_map(Call::Free),
        1 => at.clone().prop_map(Call::StreamFree),
        2 => at.clone().prop_map(Call::Map),
        2 => at.clone().prop_map(Call::Unmap),
        1 => at.clone().prop_map(Call::Retain),
        1 => Just(Call::CreateContext),
        2 => at.clone().prop_map(Call::Use),
        1 => at.prop_map(Call::Destroy),
        1 => Just(Call::Trim),
        1 => (2_u64..16).prop_map(Call::Resize),
        16 => graph_call().prop_map(Call::Graph),
    ]
}

/// An allocation that was ever granted.
#[derive(Clone, Copy)]
struct Block {
    kind: usize,
    units: u64,
    context: usize,
    handles: u32,
    mappings: u32,
    /// It was mapped once, so that the program knows an address.
    address: bool,
}

impl Block {
    fn is_live(&self) -> bool {
        self.handles + self.mappings > 0
    }
}

/// What should happen.
struct Oracle {
    blocks: BTreeMap<usize, Block>,
    /// Whether each context lives; the first is the primary one.
    contexts: Vec<bool>,
    current: Option<usize>,
    graphs: Graphs,
    limit: u64,
}

impl Oracle {
    fn used(&self) -> u64 {
        self.blocks.values().filter(|block| block.is_live()).map(|block| block.units).sum()
    }

    /// The number of an object that was created.
    fn pick(&self, at: usize) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| at % self.blocks.len())
    }

    fn block(&mut self, number: usize) -> &mut Block {
        self.blocks.get_mut(&number).unwrap()
    }

    /// The line of a call, with its code; `None` for a call of nothing.
    fn expect(&mut self, call: &Call) -> Option<(String, i32)> {
        let or = |is: bool| if is { SUCCESS } else { INVALID_VALUE };
        Some(match *call {
            Call::Allocate { kind, units } => {
                let number = self.blocks.len();
                let line = format!("alloc {number} {} {}", KINDS[kind], units * UNIT);
                let code = match self.current {
                    None if kind != VIRTUAL => INVALID_CONTEXT,
                    // what pools and graphs keep unused is no obstacle
                    _ if self.used() + self.graphs.left() + units > self.limit => OUT_OF_MEMORY,
                    _ => SUCCESS,
                };
                if code == OUT_OF_MEMORY {
                    self.graphs.trimmed();
                }
                if code == SUCCESS {
                    let context = self.current.unwrap_or(0);
                    self.blocks.insert(number, Block { kind, units, context, handles: 1, mappings: 0, address: false });
                }
                (line, code)
            }
            Call::Free(at) => {
                let number = self.pick(at)?;
                let block = self.block(number);
                let code = or(block.handles > 0);
                block.handles = block.handles.saturating_sub(1);
                (format!("free {number}"), code)
            }
            Call::StreamFree(at) => {
                let number = self.pick(at)?;
                let block = self.block(number);
                if block.kind > 2 {
                    return None;
                }
                let code = or(block.handles > 0);
                block.handles = 0;
                (format!("stream-free {number}"), code)
            }
            Call::Map(at) => {
                let number = self.pick(at)?;
                let block = self.block(number);
                // the program remembers one address of each
                if block.kind != VIRTUAL || block.mappings > 0 {
                    return None;
                }
                let code = or(block.handles > 0);
                if code == SUCCESS {
                    (block.mappings, block.address) = (1, true);
                }
                (format!("map {number} {}", block.units * UNIT), code)
            }
            Call::Unmap(at) => {
                let number = self.pick(at)?;
                let block = self.block(number);
                if !block.address {
                    return None;
                }
                block.mappings = 0;
                (format!("unmap {number}"), SUCCESS)
            }
            Call::Retain(at) => {
                let number = self.pick(at)?;
                let block = self.block(number);
                if !block.address {
                    return None;
                }
                let code = or(block.mappings > 0);
                block.handles += u32::from(code == SUCCESS);
                (format!("retain {number}"), code)
            }
            Call::CreateContext => {
                self.contexts.push(true);
                self.current = Some(self.contexts.len() - 1);
                (format!("context {}", self.contexts.len() - 1), SUCCESS)
            }
            Call::Use(at) => {
                let number = at % self.contexts.len();
                let lives = self.contexts[number];
                if lives {
                    self.current = Some(number);
                }
                (format!("use {number}"), if lives { SUCCESS } else { INVALID_CONTEXT })
            }
            Call::Destroy(at) => {
                let number = at % self.contexts.len();
                // the primary one is not destroyed so
                if number == 0 {
                    return None;
                }
                if self.current == Some(number) {
                    self.current = None;
                }
                let lived = std::mem::replace(&mut self.contexts[number], false);
                for block in self.blocks.values_mut() {
                    if block.kind < POOLS.start && block.context == number {
                        block.handles = 0;
                    }
                }
                (format!("destroy {number}"), if lived { SUCCESS } else { INVALID_CONTEXT })
            }
            Call::Trim => ("trim".to_owned(), SUCCESS),
            Call::Resize(_) | Call::Graph(_) => return None,
        })
    }
}

/// Number of the next case, also of one that shrinks.
static CASES: AtomicU64 = AtomicU64::new(0);
static NODE: LazyLock<Node> = LazyLock::new(Node::new);

/// Makes a call, and compares its code and what is counted afterwards.
fn check(call: &Call, oracle: &mut Oracle, program: &mut Calls<'_>, share: &Share) -> Result<(), TestCaseError> {
    let line = match call {
        Call::Resize(units) => {
            share.limits.resize(units * UNIT);
            oracle.limit = *units;
            return Ok(());
        }
        Call::Graph(call) => {
            // without a context there is nothing to launch in
            let used_and_limit = (oracle.used(), oracle.limit);
            let step = oracle.current.and_then(|_| oracle.graphs.step(call, used_and_limit, UNIT));
            let Some((last, before)) = step.as_ref().and_then(|step| step.lines.split_last()) else { return Ok(()) };
            for line in before {
                prop_assert_eq!(program.call(line), SUCCESS, "{}", line);
            }
            let (code, expected) = (program.call(last), step.iter().flat_map(|step| &step.codes));
            prop_assert!(expected.clone().any(|expected| *expected == code), "{}: {}", last, code);
            oracle.graphs.after(call, code);
            last.clone()
        }
        call => {
            let Some((line, expected)) = oracle.expect(call) else { return Ok(()) };
            prop_assert_eq!(program.call(&line), expected, "{}", line);
            line
        }
    };
    // the ledger agrees with the driver after each call
    let (counted, used) = (program.counted(), oracle.used());
    prop_assert!(counted >= (used + oracle.graphs.left()) * UNIT, "{} after {}", counted, line);
    // pools keep what was freed
    let pools = oracle.blocks.values().any(|block| POOLS.contains(&block.kind));
    prop_assert!(pools || counted <= (used + oracle.graphs.most) * UNIT, "{} after {}", counted, line);
    Ok(())
}

proptest! {
    // each starts a program in a container
    #![proptest_config(ProptestConfig {
        cases: (ProptestConfig::default().cases / 10).max(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn calls_have_the_codes_and_the_balance_of_the_oracle(calls in prop::collection::vec(call(), 1..100)) {
        let case = CASES.fetch_add(1, Relaxed);
        let share = NODE.share_with(&format!("case-{case}"), LIMIT * UNIT, CONTEXT);
        let mut program = Calls::begin(&NODE, &share);
        program.call("stream 1");
        let mut oracle = Oracle {
            blocks: BTreeMap::new(),
            contexts: vec![true],
            current: Some(0),
            graphs: Graphs::default(),
            limit: LIMIT,
        };
        for call in &calls {
            check(call, &mut oracle, &mut program, &share)?;
        }
        program.call("use 0");
        program.call("trim");
        program.call("graph-trim");
        prop_assert_eq!(program.counted(), (oracle.used() + oracle.graphs.left()) * UNIT);
    }
}
