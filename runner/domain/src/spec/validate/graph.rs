//! Edges between tasks and between groups: unknown, doubled, and in circles.

use std::collections::{BTreeSet, VecDeque};

use super::{Catalog, GroupLinks, GroupSpec};
use crate::fault::pointer_token;
use crate::graph::{Graph, show_cycle};
use crate::{Faults, Name};

/// How many groups a search for a cycle looks at.
const GROUPS_MAX: usize = 10_000;

pub(super) fn check_tasks(spec: &GroupSpec, faults: &mut Faults) {
    let mut graph = Graph::new();
    for (name, task) in &spec.tasks {
        graph.node(name);
        let place = format!("/tasks/{}/depends_on", pointer_token(name));
        let mut seen = BTreeSet::new();
        for (index, dependency) in task.depends_on.iter().enumerate() {
            let pointer = format!("{place}/{index}");
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
        let place = format!("/tasks/{}/depends_on", pointer_token(&cycle[0]));
        faults.add(place, format!("cycle: {}", show_cycle(&cycle)));
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
    let own = GroupLinks::of(spec);
    // Upstream to downstream, and caller to callee: the order in which runs follow one another.
    let upstream = reachable(
        name,
        &own,
        catalog,
        |links| &links.depends_on,
        |graph, from, to| graph.edge(to, from),
    );
    if let Some(cycle) = upstream.cycle_through(name) {
        faults.add("/depends_on", format!("cycle: {}", show_cycle(&cycle)));
    }
    let called = reachable(
        name,
        &own,
        catalog,
        |links| &links.sub_runs,
        |graph, from, to| graph.edge(from, to),
    );
    if let Some(cycle) = called.cycle_through(name) {
        let by = spec
            .tasks
            .iter()
            .find(|(_, task)| task.group.as_deref() == Some(cycle[1].as_str()));
        let pointer = by.map_or("/tasks".into(), |(task, _)| {
            format!("/tasks/{}/group", pointer_token(task))
        });
        faults.add(pointer, format!("cycle of sub-runs: {}", show_cycle(&cycle)));
    }
}

fn reachable(
    name: &Name,
    own: &GroupLinks,
    catalog: &dyn Catalog,
    links: fn(&GroupLinks) -> &Vec<Name>,
    edge: fn(&mut Graph, &str, &str),
) -> Graph {
    let mut graph = Graph::new();
    let mut seen = BTreeSet::from([name.clone()]);
    let mut queue = VecDeque::from([(name.clone(), own.clone())]);
    while let Some((from, found)) = queue.pop_front() {
        for to in links(&found) {
            edge(&mut graph, &from, to);
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
