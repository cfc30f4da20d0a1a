//! Checks the edges between tasks and between groups: unknown targets, duplicates and cycles.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, VecDeque};

use super::catalog::{Catalog, GroupLinks};
use crate::fault::pointer_token;
use crate::graph::{Graph, show_cycle};
use crate::spec::GroupSpec;
use crate::{Fault, Faults, Name};

/// How many groups the search for a cycle visits.
const GROUPS_MAX: usize = 10_000;

pub(super) fn check_tasks(spec: &GroupSpec, faults: &mut Faults) {
    let mut graph = Graph::new();
    for (name, task) in &spec.tasks {
        graph.node(name);
        let pointer = format!("/tasks/{}/depends_on", pointer_token(name));
        let mut seen = BTreeSet::new();
        for (index, dependency) in task.depends_on.iter().enumerate() {
            let pointer = format!("{pointer}/{index}");
            if !spec.tasks.contains_key(dependency) {
                faults.add(pointer, format!("unknown dependency: there is no task `{dependency}`"));
            } else if !seen.insert(dependency) {
                faults.add(pointer, format!("duplicate dependency `{dependency}`"));
            } else {
                graph.edge(dependency, name);
            }
        }
    }
    if let Some(cycle) = graph.cycle() {
        let pointer = format!("/tasks/{}/depends_on", pointer_token(&cycle[0]));
        faults.add(pointer, format!("cycle: {}", show_cycle(&cycle)));
    }
}

/// Whose outputs the tasks of a group may take.
pub(super) struct Ancestry<'a> {
    spec: &'a GroupSpec,
    known: OnceCell<Ancestors<'a>>,
}

/// For each task, by its position in the order of names, the set of tasks for which it waits; tasks on a cycle or
/// downstream of one have none.
struct Ancestors<'a> {
    positions: HashMap<&'a Name, usize>,
    sets: Vec<Option<Vec<u64>>>,
}

impl<'a> Ancestry<'a> {
    pub(super) fn new(spec: &'a GroupSpec) -> Self {
        Self {
            spec,
            known: OnceCell::new(),
        }
    }

    /// Whether templates of a task may take another's output: that of a task it waits for, directly or not.
    pub(super) fn check(&self, task: &Name, upstream: &Name) -> Result<(), String> {
        self.check_known(upstream)?;
        let Ancestors { positions, sets } = self.known.get_or_init(|| Ancestors::of(self.spec));
        let (Some(&task), Some(&position)) = (positions.get(task), positions.get(upstream)) else {
            return Ok(());
        };
        match &sets[task] {
            Some(set) if set[position / 64] & (1 << (position % 64)) == 0 => Err(format!(
                "`{upstream}` is not a dependency of this task, neither direct nor indirect; add it to `depends_on`"
            )),
            _ => Ok(()),
        }
    }

    /// Whether there is such a task.
    pub(super) fn check_known(&self, upstream: &Name) -> Result<(), String> {
        match self.spec.tasks.contains_key(upstream) {
            true => Ok(()),
            false => Err(format!("there is no task `{upstream}`")),
        }
    }
}

impl<'a> Ancestors<'a> {
    fn of(spec: &'a GroupSpec) -> Self {
        let positions: HashMap<_, _> = spec
            .tasks
            .keys()
            .enumerate()
            .map(|(position, name)| (name, position))
            .collect();
        let needs: Vec<Vec<usize>> = spec
            .tasks
            .values()
            .map(|task| {
                task.depends_on
                    .iter()
                    .filter_map(|name| positions.get(name).copied())
                    .collect()
            })
            .collect();
        let mut dependants = vec![Vec::new(); needs.len()];
        let mut missing: Vec<usize> = needs.iter().map(Vec::len).collect();
        for (task, needs) in needs.iter().enumerate() {
            needs.iter().for_each(|need| dependants[*need].push(task));
        }
        let words = needs.len().div_ceil(64);
        let mut sets: Vec<Option<Vec<u64>>> = vec![None; needs.len()];
        let mut ready: Vec<usize> = (0..needs.len()).filter(|task| missing[*task] == 0).collect();
        while let Some(task) = ready.pop() {
            let mut set = vec![0; words];
            for need in &needs[task] {
                set[need / 64] |= 1 << (need % 64);
                for (word, more) in set.iter_mut().zip(sets[*need].iter().flatten()) {
                    *word |= more;
                }
            }
            sets[task] = Some(set);
            for dependant in &dependants[task] {
                missing[*dependant] -= 1;
                if missing[*dependant] == 0 {
                    ready.push(*dependant);
                }
            }
        }
        Self { positions, sets }
    }
}

pub(super) fn check_groups(name: &Name, spec: &GroupSpec, catalog: &dyn Catalog, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, dependency) in spec.depends_on.iter().enumerate() {
        let (group, pointer) = (dependency.group(), format!("/depends_on/{index}"));
        if !seen.insert(group) {
            faults.add(pointer, format!("duplicate dependency `{group}`"));
        } else if group != name && catalog.group(group).is_none() {
            faults.add(pointer, format!("unknown dependency: there is no group `{group}`"));
        }
    }
    for (task_name, task) in &spec.tasks {
        if let Some(group) = &task.group
            && group != name
            && catalog.group(group).is_none()
        {
            faults.add(
                format!("/tasks/{}/group", pointer_token(task_name)),
                format!("there is no group `{group}`"),
            );
        }
    }
    if let Some(mut groups) = linked(name, GroupLinks::of(spec), catalog).cycle_through(name) {
        groups.reverse();
        faults.push(circle(spec, &groups));
    }
}

/// The fault of a spec that closes a circle of groups. The circle begins and ends with the spec's own group, and each group
/// links to the next one: it follows it, or a task of it starts a sub-run of it.
pub fn circle(spec: &GroupSpec, groups: &[String]) -> Fault {
    let linked = groups.get(1).map(String::as_str);
    let follows = spec
        .depends_on
        .iter()
        .any(|dependency| Some(dependency.group().as_str()) == linked);
    let calls = spec.tasks.iter().find(|(_, task)| task.group.as_deref() == linked);
    match calls {
        Some((task, _)) if !follows => Fault::at(
            format!("/tasks/{}/group", pointer_token(task)),
            format!("cycle: {}", show_cycle(groups)),
        ),
        _ => {
            // In the order in which runs follow one another.
            let groups: Vec<String> = groups.iter().rev().cloned().collect();
            Fault::at("/depends_on", format!("cycle: {}", show_cycle(&groups)))
        }
    }
}

/// A group with all that it is linked to, directly or not.
fn linked(name: &Name, own: GroupLinks, catalog: &dyn Catalog) -> Graph {
    let mut graph = Graph::new();
    let mut seen = BTreeSet::from([name.clone()]);
    let mut queue = VecDeque::from([(name.clone(), own)]);
    while let Some((from, links)) = queue.pop_front() {
        for to in links.depends_on.iter().chain(&links.sub_runs) {
            graph.edge(to, &from);
            if seen.len() < GROUPS_MAX
                && seen.insert(to.clone())
                && let Some(next) = catalog.group(to)
            {
                queue.push_back((to.clone(), next));
            }
        }
    }
    graph
}
