//! Programs to choose from: one for each model of hardware, by name.

use verbless_command::Device;

use crate::app::App;
use crate::error::Error;
use crate::hw_model::HwModel;

/// The programs that a host has (`flexio_app_get_list`, what constructors register in C). Dropping
/// it frees the list (`flexio_app_list_free`) and no program that was taken out of it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
/// use verbless_flexio::apps::{AppSelect, Apps};
/// use verbless_flexio::{App, HwModel};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (process, file) = (process()?, program());
/// let mut apps = Apps::default();
/// apps.register(App::new("worker", &file)?, HwModel::Default)?;
/// apps.register(App::new("worker", &file)?, HwModel::Bf3)?;
/// let select = AppSelect { device: Some(process.device()), ..AppSelect::new("worker") };
/// assert_eq!(apps.get(&select)?.name(), "worker");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Apps {
    all: Vec<(App, HwModel)>,
}

/// Selects a program (`flexio_app_select_attr`).
#[derive(Debug, Clone, Copy)]
pub struct AppSelect<'a> {
    /// The application's name.
    pub name: &'a str,
    /// The hardware model that the program is for; [`HwModel::Default`] is that of the device.
    pub hw_model: HwModel,
    /// The device whose hardware model is meant, with [`HwModel::Default`].
    pub device: Option<&'a Device>,
}

impl<'a> AppSelect<'a> {
    /// The program of this name for the model of a device that is still to be said.
    pub fn new(name: &'a str) -> Self {
        Self { name, hw_model: HwModel::Default, device: None }
    }
}

impl Apps {
    /// Adds a program for a model, or with [`HwModel::Default`] one for those that no other program
    /// of its name is for.
    ///
    /// # Errors
    /// There is one of this name for this model; the model is [`HwModel::NotAvailable`].
    pub fn register(&mut self, app: App, hw_model: HwModel) -> Result<(), Error> {
        if hw_model == HwModel::NotAvailable {
            return Err(Error::Failed(format!("{} is for no model: name one", app.name())));
        }
        if self.find(app.name(), hw_model).is_some() {
            let name = app.name();
            return Err(Error::Failed(format!("there is a program {name} for {hw_model} already")));
        }
        self.all.push((app, hw_model));
        Ok(())
    }

    /// All applications, in the order in which they were added (`flexio_app_get_list`).
    pub fn list(&self) -> impl ExactSizeIterator<Item = (&App, HwModel)> {
        self.all.iter().map(|(app, hw_model)| (app, *hw_model))
    }

    /// The program of a name for a model (`flexio_app_get`): the one that was added for just this
    /// model, else the one for any.
    ///
    /// # Errors
    /// There is none; the error says for which models there is one of this name. The model is to
    /// be a device's, and there is no device, or it has none.
    pub fn get(&self, select: &AppSelect<'_>) -> Result<&App, Error> {
        let name = select.name;
        let wanted = match (select.hw_model, select.device) {
            (HwModel::Default, Some(device)) => HwModel::of(device),
            (HwModel::Default, None) => {
                return Err(Error::Failed(format!(
                    "{name} is selected for the model of a device, and no device is given: \
                     AppSelect::device or AppSelect::hw_model"
                )));
            }
            (wanted, _) => wanted,
        };
        if wanted == HwModel::NotAvailable {
            return Err(Error::Failed(format!("the device of {name} has no known DPA")));
        }
        let found = self.find(name, wanted).or_else(|| self.find(name, HwModel::Default));
        found.ok_or_else(|| {
            let models: Vec<_> = self
                .all
                .iter()
                .filter(|(app, _)| app.name() == name)
                .map(|(_, model)| model.to_string())
                .collect();
            Error::Failed(match models.is_empty() {
                true => format!("there is no program {name}"),
                false => format!("{name} is for {}, and not for {wanted}", models.join(", ")),
            })
        })
    }

    fn find(&self, name: &str, hw_model: HwModel) -> Option<&App> {
        let same = |(app, model): &&(App, HwModel)| app.name() == name && *model == hw_model;
        self.all.iter().find(same).map(|(app, _)| app)
    }
}
