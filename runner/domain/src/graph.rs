//! The graph of a group's tasks, and the graph between groups: cycles, with the names along them, and an order of the
//! nodes.
//!
//! Wraps petgraph; none of its types leave this file.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

/// A directed graph of named nodes; an edge goes from a dependency to its dependant.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    inner: DiGraph<String, ()>,
    nodes: BTreeMap<String, NodeIndex>,
}

impl Graph {
    /// A graph without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node, unless it is there.
    pub fn node(&mut self, name: &str) {
        self.index(name);
    }

    /// Says that `dependant` needs `needed`; both are added if they are not there.
    pub fn edge(&mut self, needed: &str, dependant: &str) {
        let (from, to) = (self.index(needed), self.index(dependant));
        self.inner.update_edge(from, to, ());
    }

    fn index(&mut self, name: &str) -> NodeIndex {
        if let Some(index) = self.nodes.get(name) {
            return *index;
        }
        let index = self.inner.add_node(name.to_owned());
        self.nodes.insert(name.to_owned(), index);
        index
    }

    fn neighbours(&self, node: NodeIndex, direction: petgraph::Direction) -> Vec<NodeIndex> {
        let mut found: Vec<_> = self.inner.neighbors_directed(node, direction).collect();
        found.sort_by(|a, b| self.inner[*a].cmp(&self.inner[*b]));
        found
    }

    /// A cycle if there is one, as the names along its edges with the first repeated at the end (`a`, `b`, `a`): a
    /// shortest one through the first name, in alphabetical order, that lies on any cycle.
    pub fn cycle(&self) -> Option<Vec<String>> {
        // Not tarjan_scc: that one recurses, and 10,000 tasks in a chain overflow a thread's stack.
        let start = kosaraju_scc(&self.inner)
            .into_iter()
            .filter(|component| component.len() > 1 || self.inner.contains_edge(component[0], component[0]))
            .flatten()
            .min_by(|a, b| self.inner[*a].cmp(&self.inner[*b]))?;
        self.path_back(start)
    }

    /// A shortest cycle through one node, if it lies on any.
    pub fn cycle_through(&self, name: &str) -> Option<Vec<String>> {
        self.path_back(*self.nodes.get(name)?)
    }

    fn path_back(&self, start: NodeIndex) -> Option<Vec<String>> {
        let mut came_from: HashMap<NodeIndex, NodeIndex> = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for next in self.neighbours(node, petgraph::Direction::Outgoing) {
                if next == start {
                    let mut names = vec![self.inner[start].clone(), self.inner[node].clone()];
                    let mut at = node;
                    while let Some(before) = came_from.get(&at) {
                        names.push(self.inner[*before].clone());
                        at = *before;
                    }
                    names.reverse();
                    return Some(names);
                }
                if let Entry::Vacant(unseen) = came_from.entry(next) {
                    unseen.insert(node);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// All nodes, each after what it needs, alphabetical where that leaves a choice; `None` if there is a cycle.
    pub fn order(&self) -> Option<Vec<String>> {
        let mut open: HashMap<NodeIndex, usize> = HashMap::new();
        let mut ready = std::collections::BTreeSet::new();
        for (name, index) in &self.nodes {
            let needs = self
                .inner
                .neighbors_directed(*index, petgraph::Direction::Incoming)
                .count();
            if needs == 0 {
                ready.insert((name.clone(), *index));
            } else {
                open.insert(*index, needs);
            }
        }
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some((name, index)) = ready.pop_first() {
            order.push(name);
            for next in self.inner.neighbors_directed(index, petgraph::Direction::Outgoing) {
                if let Some(needs) = open.get_mut(&next) {
                    *needs -= 1;
                    if *needs == 0 {
                        open.remove(&next);
                        ready.insert((self.inner[next].clone(), next));
                    }
                }
            }
        }
        (order.len() == self.nodes.len()).then_some(order)
    }

    /// The direct dependants of this node, in alphabetical order.
    pub fn dependants(&self, name: &str) -> Vec<String> {
        self.named_neighbours(name, petgraph::Direction::Outgoing)
    }

    /// The direct dependencies of this node, in alphabetical order.
    pub fn dependencies(&self, name: &str) -> Vec<String> {
        self.named_neighbours(name, petgraph::Direction::Incoming)
    }

    fn named_neighbours(&self, name: &str, direction: petgraph::Direction) -> Vec<String> {
        self.nodes
            .get(name)
            .map(|index| {
                self.neighbours(*index, direction)
                    .into_iter()
                    .map(|n| self.inner[n].clone())
                    .collect()
            })
            .unwrap_or_default()
    }
}

/// A cycle as people read it: `a -> b -> a`.
pub fn show_cycle(names: &[String]) -> String {
    /// Longer ones are cut in the middle.
    const SHOWN: usize = 20;
    if names.len() <= SHOWN {
        return names.join(" -> ");
    }
    let (head, tail) = (&names[..SHOWN / 2], &names[names.len() - SHOWN / 2..]);
    format!("{} -> ... -> {}", head.join(" -> "), tail.join(" -> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &str) -> Graph {
        let mut graph = Graph::new();
        for edge in edges.split_whitespace() {
            match edge.split_once('>') {
                Some((from, to)) => graph.edge(from, to),
                None => graph.node(edge),
            }
        }
        graph
    }

    fn check(edges: &str, expect: Result<&str, &str>) {
        let graph = graph(edges);
        let got = match graph.cycle() {
            Some(cycle) => Err(show_cycle(&cycle)),
            None => Ok(graph.order().expect("no cycle, so an order").join(" ")),
        };
        assert_eq!(got.as_deref().map_err(String::as_str), expect, "{edges}");
        assert_eq!(graph.order().is_some(), got.is_ok());
    }

    #[test]
    fn orders_or_names_the_cycle() {
        check("", Ok(""));
        check("b a", Ok("a b"));
        check("a>b a>c b>d c>d", Ok("a b c d"));
        check("z>a a>b", Ok("z a b"));
        check("a>a", Err("a -> a"));
        check("a>b b>a", Err("a -> b -> a"));
        check("x>a a>b b>c c>a", Err("a -> b -> c -> a"));
        check("a>b b>c c>d d>a c>a", Err("a -> b -> c -> a"));
        check("m>n n>m a>b", Err("m -> n -> m"));
    }

    #[test]
    fn a_long_chain_needs_no_stack() {
        let mut graph = Graph::new();
        for node in 0..10_000 {
            graph.edge(&format!("t{node}"), &format!("t{}", node + 1));
        }
        assert!(graph.cycle().is_none());
        graph.edge("t10000", "t0");
        assert!(show_cycle(&graph.cycle().unwrap()).starts_with("t0 -> t1 -> "));
    }
}
