//! The definition of a case of two programs.

use clap::ValueEnum;
use verbless_model::Model;

use super::role::Role;
use crate::{Need, Stop};

/// Which of the two roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// On the first device, or on this machine.
    A,
    /// On the second device, if there are two, or on the other machine.
    B,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// How a role is killed at its kill point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The role itself, by SIGKILL; a thread closes its device files.
    Itself,
    /// The director, while the role waits there; the device continues its outstanding work.
    Director,
}

/// A role that is killed.
#[derive(Debug, Clone)]
pub(crate) struct Kill {
    pub(crate) side: Side,
    /// The name of the point at which it is killed.
    pub(crate) point: &'static str,
    /// The number of its lives that end there.
    pub(crate) lives: u32,
    pub(crate) by: By,
}

/// A fault that happens when a role reaches a point. Only the model in this process has it.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) point: &'static str,
    pub(crate) happen: fn(&Model),
}

/// The function of a role.
pub(crate) type Act = fn(&mut Role) -> Result<(), Stop>;

/// Two programs, their kills and their faults.
#[derive(Clone)]
pub struct Case {
    /// The prefix of its id.
    pub(crate) group: &'static str,
    /// The claim that it proves, with underscores.
    pub(crate) name: String,
    /// What must be there; if something is missing, the case is skipped.
    pub needs: Vec<Need>,
    pub(crate) a: Act,
    pub(crate) b: Act,
    pub(crate) kill: Option<Kill>,
    pub(crate) faults: Vec<Fault>,
    /// Whether one role opens the devices of both.
    pub(crate) opens_both: bool,
}

impl Case {
    /// Two programs that both succeed.
    pub(crate) fn new(name: &str, a: Act, b: Act) -> Self {
        Self {
            group: "",
            name: name.into(),
            needs: Vec::new(),
            a,
            b,
            kill: None,
            faults: Vec::new(),
            opens_both: false,
        }
    }

    /// `group::name`: filters and reports use it.
    pub fn id(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }

    /// Whether its roles can be on two machines: no role opens both devices, and no fault is of a
    /// model that both share.
    pub fn spans_machines(&self) -> bool {
        !self.opens_both && !self.needs.iter().any(|need| matches!(need, Need::Model))
    }

    /// One role opens the devices of both.
    pub(crate) fn opens_both(mut self) -> Self {
        self.opens_both = true;
        self
    }

    /// Adds a need.
    pub(crate) fn needs(mut self, need: Need) -> Self {
        let name = need.to_string();
        if !self.needs.iter().any(|other| other.to_string() == name) {
            self.needs.push(need);
        }
        self
    }

    /// Kills one of the roles.
    pub(crate) fn kill(mut self, side: Side, point: &'static str, by: By) -> Self {
        self.kill = Some(Kill { side, point, lives: 1, by });
        self
    }

    /// Kills the role this many times in all; it restarts after each kill.
    pub(crate) fn lives(mut self, lives: u32) -> Self {
        if let Some(kill) = &mut self.kill {
            kill.lives = lives;
        }
        self
    }

    /// A fault happens, which needs the model in this process.
    pub(crate) fn fault(mut self, point: &'static str, happen: fn(&Model)) -> Self {
        self.faults.push(Fault { point, happen });
        self.needs(Need::Model)
    }

    pub(crate) fn act(&self, side: Side) -> Act {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }
}
